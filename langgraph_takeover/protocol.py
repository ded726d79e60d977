"""The handoff protocol: offer, deliver, roll back and repair handoffs, and their messages."""

from langgraph_takeover.graph.delivery.delivery import Delivery, build_delivery, deliver
from langgraph_takeover.graph.delivery.offers import hand_over
from langgraph_takeover.graph.delivery.recovery import RepairFinding, Rollback, repair, roll_back
from langgraph_takeover.handoff.ledger.acceptance import is_confirmation_request, parse_understanding
from langgraph_takeover.handoff.ledger.handoffs import Handoff, HandoffState
from langgraph_takeover.handoff.records.envelope import Envelope, Understanding
from langgraph_takeover.handoff.records.record import HandoffRecord, Review
from langgraph_takeover.handoff.trace.events import Event, HandoffPoint, PointKind
from langgraph_takeover.nodes.deliver import DeliveryPolicy, SupervisorDecision, SupervisorRequest
from langgraph_takeover.nodes.state import ProcessChoice, ProcessQuestion, ReviewRequest, ToolQuestion

__all__ = [
    "Delivery",
    "DeliveryPolicy",
    "Envelope",
    "Event",
    "Handoff",
    "HandoffPoint",
    "HandoffRecord",
    "HandoffState",
    "PointKind",
    "ProcessChoice",
    "ProcessQuestion",
    "RepairFinding",
    "Review",
    "ReviewRequest",
    "Rollback",
    "SupervisorDecision",
    "SupervisorRequest",
    "ToolQuestion",
    "Understanding",
    "build_delivery",
    "deliver",
    "hand_over",
    "is_confirmation_request",
    "parse_understanding",
    "repair",
    "roll_back",
]
