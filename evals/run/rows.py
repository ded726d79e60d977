"""The rows of a run: one model per stage. Columns of tables, their types and their documentation come from the models."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, NamedTuple, Self

from annotated_types import Ge, Le
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Strict, ValidationError

INFRASTRUCTURE_FAILURE = "infrastructure_failure"
UNLABELLED = "unlabelled"
"""The handoff state of a record without a valid label."""
_LARGEST_NUMBER = 10**15
_NAME_PATTERN = re.compile(r"(?!\.)[^/\x00-\x1f\ud800-\udfff]{1,250}")
_NO_EVENTS = "no event: the agent did nothing, so the row is not a result (--resume runs it again)"


def _require_number(value: Any) -> Any:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError(f"not a number from 0 to {_LARGEST_NUMBER:,}")
    return value


def _require_file_name(value: str) -> str:
    if not _NAME_PATTERN.fullmatch(value):
        raise ValueError("not a file name")
    return value


Count = Annotated[int, Ge(0), Le(_LARGEST_NUMBER), BeforeValidator(_require_number)]
Amount = Annotated[float, Ge(0), Le(_LARGEST_NUMBER), BeforeValidator(_require_number)]
Answer = Annotated[bool, Strict()]
FileName = Annotated[str, AfterValidator(_require_file_name)]
"""A name that becomes a part of paths."""
Counts = Mapping[str, Count]
Fields = dict[str, Any]
"""Some fields of a row, until the row is made."""
TokenCounts = Mapping[str, Count | None]


class Row(BaseModel):
    """One row. Fields that a row lacks are None; files omit them. Further fields of a file are kept."""

    model_config = ConfigDict(frozen=True, extra="allow")
    key_fields: ClassVar[tuple[str, ...]] = ()
    result_fields: ClassVar[tuple[str, ...]] = ()
    """The fields that every result has, beside its key; an infrastructure failure is no result."""

    outcome: str
    """`infrastructure_failure`, or that the job is done: `run`, `graded` or `written`."""
    detail: str | None = None
    """What went wrong or deserves attention: of a failure its reason, of replies without text the limit to raise."""
    seconds: Amount | None = None
    """Seconds of the job."""
    node: str | None = None
    """Of a cluster: the node, by the first letters of its id."""
    tries: Count | None = None
    """Of a cluster: how often the job was started, there or elsewhere."""
    out: str = ""
    """The directory of the row's run. No column: only loaded rows have it."""

    @classmethod
    def list_columns(cls) -> tuple[str, ...]:
        """The columns of published tables: the key first, and the fields of a cluster last."""
        last = ("node", "tries")
        fields = [name for name in cls.model_fields if name not in ("out", *cls.key_fields, *last)]
        return (*cls.key_fields, *fields, *last)

    @property
    def key(self) -> tuple[Any, ...]:
        return self.read(*self.key_fields)

    @property
    def is_failure(self) -> bool:
        """Whether the job failed for a reason that says nothing about the agents."""
        return self.outcome == INFRASTRUCTURE_FAILURE

    def read(self, *names: str) -> tuple[Any, ...]:
        """The values of these fields, None for fields that this kind of row lacks."""
        return tuple(getattr(self, name, None) for name in names)

    def change(self, **fields: Any) -> Self:
        """The row with other values of these fields."""
        return self.model_copy(update=fields)

    def to_dict(self) -> dict[str, Any]:
        """The fields that the row has, as JSON values."""
        return self.model_dump(mode="json", exclude_unset=True, exclude={"out"})

    def require_events(self) -> Self:
        """Return the row; one of an agent that did nothing becomes the infrastructure failure that it is."""
        return self


class CostRow(Row):
    """A row of a job that calls a model. A sum is None if a part of it is unknown."""

    llm_calls: Count | None = None
    """Replies of the model."""
    prompt_tokens: Count | None = None
    """Prompt tokens of all calls."""
    cached_tokens: Count | None = None
    """The part of the prompt tokens that the endpoint had cached."""
    completion_tokens: Count | None = None
    """Completion tokens of all calls."""
    uncounted_calls: Count | None = None
    """Calls whose tokens the endpoint did not report, and calls that a kill cut off; the sums of tokens are then unknown."""
    cost_usd: Amount | None = None
    """US dollars; unknown if a price or a number of tokens is unknown."""
    prompts: str | None = None
    """Version of the prompts."""


class AgentRow(CostRow):
    """A row of a run of an agent."""

    task_id: str | None = None
    """Id of the task."""
    predecessor: str | None = None
    """Model of the predecessor, as given."""
    trace: FileName | None = None
    """Name of its file in `traces/`; with the prefix `predecessor.` or `takeover.`, of its thread."""
    stop_reason: str | None = None
    """How it ended."""
    resolved: Answer | None = None
    """Official verdict of the final patch. Of a predecessor, unknown if it was stopped or has no record."""
    events: Count | None = None
    """Actions and observations."""
    steps: Count | None = None
    """Actions."""
    empty_replies: Count | None = None
    """Replies without text and action, such as thought alone; `detail` says more."""
    condensed: Count | None = None
    """Oldest observations that were replaced by a marker, under `--condense`."""
    divergence: Amount | None = None
    """Of a replay: share of its steps whose observation differs from the recording, from 0 to 1."""
    divergence_step: Count | None = None
    """Of a replay: the first such step, as `takeover-detect` counts actions."""
    agent: str | None = None
    """External agent that worked; empty for the built-in one, which lacks the next four fields too."""
    agent_version: str | None = None
    """Version of the external agent."""
    session_account: Counts | None = None
    """How many events of the history became what in the agent's session: `converted`, `shortened: reason`, `dropped: reason`."""
    side_requests: Count | None = None
    """Requests of subagents and side tasks that reached the model."""
    refused_requests: Counts | None = None
    """Refused requests by reason."""
    left_out: tuple[str, ...] | None = None
    """Up to 20 changes that the graded patch lacks, each with its reason."""
    left_out_count: Count | None = None
    """Number of all such changes."""
    patch: str | None = None
    """Final patch."""

    @property
    def is_solved(self) -> bool:
        """Whether the final patch is resolved; an unknown verdict counts as no."""
        return bool(self.resolved)

    def require_events(self) -> Self:
        if self.events != 0 or self.is_failure:
            return self
        identity = {name: getattr(self, name) for name in _IDENTITY_FIELDS if name in self.model_fields_set}
        failure = {"resolved": None, "outcome": INFRASTRUCTURE_FAILURE, "detail": _NO_EVENTS}
        return type(self)(**identity, **failure)


class PredecessorRow(AgentRow):
    """One row per task and predecessor."""

    key_fields: ClassVar[tuple[str, ...]] = ("task_id", "predecessor")
    result_fields: ClassVar[tuple[str, ...]] = ("events", "stop_reason", "records")

    task_id: str
    predecessor: str
    records: tuple[FileName, ...] | None = None
    """Ids of its records, one per handoff point; each ends with the point's kind."""
    remainders: Mapping[str, TokenCounts | None] | None = None
    """By record: `events`, `prompt_tokens` and `completion_tokens` needed after the point; unknown if it was stopped."""
    missed_points: tuple[str, ...] | None = None
    """Of a replay: the kinds of points that the recording reaches, but not its replay."""


class LabelRow(Row):
    """One row per record: the official grading of its snapshot."""

    key_fields: ClassVar[tuple[str, ...]] = ("record_id",)
    result_fields: ClassVar[tuple[str, ...]] = ("handoff_state",)

    record_id: FileName
    """Id of the record."""
    handoff_state: str | None = None
    """Evaluator's state of the snapshot: `needs_completion`, `already_solved` or `behavior_broken`."""
    fail_to_pass_failures: Count | None = None
    """Failing FAIL_TO_PASS tests; unknown if the tests gave no result."""
    pass_to_pass_failures: Count | None = None
    """Failing PASS_TO_PASS tests."""
    regressions: Answer | None = None
    """Whether any PASS_TO_PASS test fails."""
    left_out: tuple[str, ...] | None = None
    """Up to 20 changes that the graded patch lacks, each with its reason."""
    left_out_count: Count | None = None
    """Number of all such changes."""


class NotesRow(CostRow):
    """One row per record, if a view needs notes. The costs are those of both notes together."""

    key_fields: ClassVar[tuple[str, ...]] = ("record_id",)
    result_fields: ClassVar[tuple[str, ...]] = ("usage",)

    record_id: FileName
    """Id of the record."""
    model: str | None = None
    """Model that wrote the notes."""
    usage: Mapping[str, TokenCounts] | None = None
    """Prompt, cached and completion tokens of `summary` and `structured`."""
    truncated: tuple[str, ...] | None = None
    """Notes whose last reply was cut off at its length limit: `summary`, `structured`."""
    summary_digest: str | None = None
    """Digest of the summary; empty if it was not requested."""
    structured_digest: str | None = None
    """Digest of the structured note; empty if it was not requested."""
    malformed: Answer | None = None
    """Whether the fields of the structured note could not be read."""
    retried: str | None = None
    """Reasons for a second request."""
    stated: Count | None = None
    """Stated fields with a value: changed files, whether the latest validation passes, whether the work is done."""
    contradicted: Count | None = None
    """Stated fields that differ from the record."""
    claims: Count | None = None
    """Statements of the note."""
    missing_paths: Count | None = None
    """Statements that name a path that does not exist."""


class Takeover(AgentRow):
    """One row per takeover."""

    key_fields: ClassVar[tuple[str, ...]] = ("record_id", "view", "successor", "repeat")
    result_fields: ClassVar[tuple[str, ...]] = ("task_id", "events", "stop_reason", "resolved")

    record_id: FileName
    """Id of the record."""
    view: FileName
    """View under which the successor continued."""
    successor: str
    """Model of the successor, as given."""
    repeat: Count
    """Number of the attempt, from 1."""
    attempts: Count | None = None
    """Number of attempts, of which one was kept; the other fields are of that one. The next fields too: under `--attempts`."""
    chosen_attempt: Count | None = None
    """Number of the kept attempt, from 1."""
    choice_commands: Count | None = None
    """Test commands of the predecessor that decided."""
    attempts_passed: tuple[Count, ...] | None = None
    """Of each attempt, how many of these commands pass in its final sandbox."""
    attempts_steps: Count | None = None
    """Actions of all attempts."""
    attempts_llm_calls: Count | None = None
    """Replies of the model in all attempts."""
    attempts_prompt_tokens: Count | None = None
    """Prompt tokens of all attempts."""
    attempts_completion_tokens: Count | None = None
    """Completion tokens of all attempts."""
    attempts_cost_usd: Amount | None = None
    """US dollars of all attempts."""
    attempts_seconds: Amount | None = None
    """Seconds of all attempts, without their test commands."""
    point: FileName | None = None
    """Kind of the handoff point."""
    digest: str | None = None
    """Digest of the record."""
    fail_to_pass_failures: Count | None = None
    """Failing FAIL_TO_PASS tests of the final patch; unknown if the tests gave no result."""
    pass_to_pass_failures: Count | None = None
    """Failing PASS_TO_PASS tests of the final patch."""
    regressions: Answer | None = None
    """Whether any PASS_TO_PASS test fails."""
    cleaned_resolved: Answer | None = None
    """Verdict of the cleaned patch; equal to `resolved` if there is nothing to remove; unknown if the second grading failed."""
    patch_files: Count | None = None
    """Files of the final patch."""
    patch_lines: Count | None = None
    """Added and removed lines of the final patch."""
    scratch_files: tuple[str, ...] | None = None
    """Up to 20 new scratch files in the final patch."""
    test_files: tuple[str, ...] | None = None
    """Up to 20 changed tests in the final patch."""
    first_request_tokens: Count | None = None
    """Tokens of the whole first request, as the endpoint counted them, with the instructions that an external agent adds."""
    first_prompt_chars: Count | None = None
    """Characters of the view's first messages; of a continuation, of the conversation that it resumed."""
    first_prompt_tokens: Count | None = None
    """The same in tokens, estimated at four characters each."""
    window_tokens: Count | None = None
    """Context window for which the view was built."""
    notes_model: str | None = None
    """Model that wrote the record's notes."""
    note_digest: str | None = None
    """Digest of the note that the view shows; empty for a view without one."""
    recalls: Count | None = None
    """Uses of the `cited` view's tool."""
    recall_events: Count | None = None
    """Events of these uses."""
    recall_tokens: Count | None = None
    """Tokens of these uses, estimated at four characters each."""
    shown_chars: Count | None = None
    """Characters of its observations."""
    reshown_chars: Count | None = None
    """The part of them that the predecessor had seen or written."""
    verification_chars: Count | None = None
    """The part of them that belongs to the verification."""
    rediscovery_events: Count | None = None
    """Events that recover what the predecessor knew."""
    rediscovery: Counts | None = None
    """These events by kind: `read`, `search`, `command`."""
    verification_events: Count | None = None
    """Events of the first re-run of the predecessor's latest validation, which is no debt."""
    kept: Amount | None = None
    """Share of the predecessor's changed source lines in the final patch, from 0 to 1."""
    reexamined: Answer | None = None
    """Whether it read a changed file or ran a validation before its first edit of those files, or its end."""
    verified_before_finish: Answer | None = None
    """Whether a validation gave a result after its last change of a source file."""


class CountedTakeover(Takeover):
    """A graded takeover at a point that counts, with fields that need other rows."""

    handoff_state: str = UNLABELLED
    """Evaluator's state of the snapshot."""
    state_by_regression: str = UNLABELLED
    """The same in the regression-first order: an unresolved snapshot with any regression is `behavior_broken`."""
    harm: Answer | None = None
    """Whether it is unsolved, but solved under the baseline at the same point, successor and repeat."""
    rescue: Answer | None = None
    """The reverse."""
    preserved: Answer | None = None
    """Of a snapshot that was already solved: whether it is still solved."""
    uninterrupted_events: Count | None = None
    """Events that the predecessor still needed after the point."""
    uninterrupted_prompt_tokens: Count | None = None
    """Prompt tokens that the predecessor still needed after the point."""
    uninterrupted_resolved: Answer | None = None
    """Whether the predecessor solved the task at its end."""
    debt_vs_uninterrupted: float | None = None
    """Events beyond those of the predecessor after the point."""
    token_debt_vs_uninterrupted: float | None = None
    """Prompt tokens beyond those of the predecessor after the point."""
    reshown_share: float | None = None
    """Re-shown share of the shown text, from 0 to 1."""
    reshown_tokens: int | None = None
    """Re-shown text in tokens, estimated at four characters each."""

    @classmethod
    def extend(cls, row: Takeover, **fields: Any) -> CountedTakeover:
        """A valid row with further fields."""
        return cls.model_validate(dict(row) | fields)


class UncountedTakeover(NamedTuple):
    """A takeover that is expected, but left out."""

    record_id: str
    successor: str
    repeat: int
    view: str
    reason: str
    task_id: str | None = None
    predecessor: str | None = None
    point: str | None = None
    handoff_state: str = UNLABELLED
    state_by_regression: str = UNLABELLED


STAGES: dict[str, type[Row]] = {
    "predecessors": PredecessorRow,
    "labels": LabelRow,
    "notes": NotesRow,
    "takeovers": Takeover,
}
"""The stages of a run, and the model of their rows."""
_IDENTITY_FIELDS = (
    "task_id", "record_id", "predecessor", "successor", "view", "repeat", "trace", "point", "digest", "seconds",
)  # fmt: skip


def find_missing_field(row: Row) -> str | None:
    """The first field, if any, that every result has and this row lacks."""
    return next((name for name in row.result_fields if getattr(row, name) is None), None)


def describe_row_error(error: ValidationError) -> str:
    """The first error of a row, in words that follow its number."""
    first = error.errors()[0]
    name = str(first["loc"][0])
    if first["type"] == "missing" or (first["input"] is None and len(first["loc"]) == 1):
        return f"has no field {name!r}"
    message = first["msg"].removeprefix("Value error, ")
    return f"has the field {name!r:.60} {reprlib.repr(first['input'])}: {message[:1].lower()}{message[1:]}"
