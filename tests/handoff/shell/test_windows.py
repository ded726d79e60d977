"""Command lines of PowerShell and `cmd` are read like those of a POSIX shell."""

from __future__ import annotations

import pytest

from langgraph_takeover.handoff.points.validation import find_validations
from langgraph_takeover.handoff.shell.windows import is_powershell, translate, write_powershell_command


@pytest.mark.parametrize(
    ("text", "translated"),
    [
        ("npm test", "npm test"),
        (r"Set-Location 'c:\p'; npx vitest run", "cd c:/p; npx vitest run"),
        (r".\.venv\Scripts\python.exe -m pytest tests\test_x.py", "./.venv/Scripts/python.exe -m pytest tests/test_x.py"),
        (r"& '.\venv\Scripts\python.exe' -m pytest 2>&1 | Select-Object -Last 20",
         "./venv/Scripts/python.exe -m pytest 2>&1 | tail -n 20"),
        (r"(Get-Content src\a.ts) -replace 'a','b' | Set-Content src\a.ts", "cat src/a.ts; true | cat > src/a.ts"),
        (r"gc src\a.ts -TotalCount 5", "head -n 5 src/a.ts"),
        ("@'\nline 1\nit''s\n'@ | Set-Content -Path src\\new.ts -Encoding utf8\nnpm test",
         "cat > src/new.ts <<'END'\nline 1\nit''s\nEND\nnpm test"),
        (r"Add-Content -Path log.txt -Value 'END'", "cat >> log.txt <<'END1'\nEND\nEND1"),
        ("if (Test-Path x) { npm test } else { Write-Host 'no' }", "ls x; if :; then :; npm test; fi; if :; then :; echo no; fi"),
        (r"$c = gc -Raw a.ts; [System.IO.File]::WriteAllText('c:\p\a.ts', $c.Replace('a','b'))", "cat a.ts; true > c:/p/a.ts"),
        (r"$p='c:\p\x.py'; python $p", "python c:/p/x.py"),
        (r"$env:CI='1'; npm.cmd run test", "npm.cmd run test"),
        ("npx vitest run; exit $LASTEXITCODE", "npx vitest run"),
        (r"New-Item -ItemType Directory -Force src\x | Out-Null; ri a.py; Rename-Item src\a.py b.py",
         "mkdir -p src/x | cat; rm -r a.py; mv src/a.py src/b.py"),
        ("@'\nprint(1)\n'@ | python -", "python - <<'END'\nprint(1)\nEND"),
        (r"rg -n 'foo\s+bar' src; git diff", r"rg -n 'foo\s+bar' src; git diff"),
        ("ls  # a note\n<# more\n#> git status", "ls\ngit status"),
        ("python -c `\n  'print(1)'", "python -c 'print(1)'"),
        ('Write-Output "a `"b`" ""c"""', "echo 'a \"b\" \"c\"'"),
        ("Copy-Item a.txt -Destination b.txt -Force *> $null", "cp -r a.txt b.txt &> /dev/null"),
    ],
)  # fmt: skip
def test_powershell(text: str, translated: str) -> None:
    assert translate(text, "powershell") == translated


@pytest.mark.parametrize(
    ("text", "translated"),
    [
        (r"cd /d C:\p && npm test", "cd C:/p && npm test"),
        (r"type src\a.py & del /q src\b.py", "cat src/a.py; rm -r src/b.py"),
        (r"set CI=1&& .venv\Scripts\python -m pytest", ".venv/Scripts/python -m pytest"),
        (r'"C:\Program Files\nodejs\npx.cmd" vitest run', "'C:/Program Files/nodejs/npx.cmd' vitest run"),
        ("dir /s /b src > nul", "ls src > /dev/null"),
        ("echo it^'s 50%", "echo 'it'\"'\"'s' 50%"),
    ],
)
def test_cmd(text: str, translated: str) -> None:
    assert translate(text, "cmd") == translated


@pytest.mark.parametrize(
    "command",
    [
        "cmd /c npm test", "cmd //c 'npm test'", 'cmd.exe /d /s /c "npm run test:unit"', "npm.cmd test", "npx.cmd vitest run",
        "powershell -Command \"Set-Location 'c:\\p'; npx vitest run\"", "pwsh -NoProfile -c 'npx jest'", "py -3 -m pytest -q",
        ".\\.venv\\Scripts\\python.exe -m pytest", "/c/p/.venv/Scripts/python.exe -m pytest",
        "C:\\p\\.venv\\Scripts\\pytest.exe -q",
        "Set-Location 'c:\\p'; npx vitest run", ".\\gradlew.bat test", 'cmd /c "cd C:\\p && npx.cmd jest"',
        write_powershell_command("cd 'src'; npx vitest run"), write_powershell_command("$env:CI=1; npm test; exit $LASTEXITCODE"),
    ],
)  # fmt: skip
def test_validations_are_found(command: str) -> None:
    (found,) = find_validations(command, ())
    assert (found.kind, found.command.exit_code_is_own) == ("test", True)


@pytest.mark.parametrize(
    "command",
    ["awk '{$1=\"\"; print}' f", "grep -rn foo\\.bar .", "x=1; echo $x", "cat <<'E' > a.ps1\nGet-Content x\nE",
        "find . -name \\*.py",
     "[[ -f x ]] && ls", "sed -i 's/\\bfoo/bar/' a.py", "git log --format='%h;Get-Date'"],
)  # fmt: skip
def test_lines_of_a_posix_shell(command: str) -> None:
    assert not is_powershell(command)


def test_a_text_that_means_the_same_everywhere_is_unchanged() -> None:
    assert write_powershell_command("npm test") == "npm test"
    assert write_powershell_command("Get-ChildItem") == "powershell -Command 'Get-ChildItem'"
