"""A notebook's kernel trains in a session that no block encloses, and shows it in one area, not on standard error."""

import io
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import ebbtide
from ebbtide.errors import EbbtideWarning, SessionError
from ebbtide.screen import progress
from ebbtide.screen.notebook import Area, area_here, warnings_go_to
from ebbtide.screen.progress import Progress
from ebbtide.session.session import Session
from ebbtide.settings import ProgressMode
from ebbtide.terminal import warn_user
from tests.helpers.fake_native import QUIET, FakeNative
from tests.screen.test_progress import FINISHED, wait_for


class Handle:
    """Stands for a notebook's display."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def update(self, data: dict[str, str], raw: bool) -> None:
        assert raw
        self.texts.append(data["text/plain"])


def test_an_area_shows_the_latest_lines_and_the_one_that_changes() -> None:
    handle = Handle()
    area = Area(handle)
    for number in range(20):
        area.say(f"said {number}")
    area.draw("step 4")
    area.draw("step 4")
    area.erase()
    assert handle.texts[-2] == "\n".join([*(f"said {number}" for number in range(8, 20)), "step 4"])
    assert handle.texts[-1].endswith("said 19")
    assert len(handle.texts) == 22  # what has not changed is not sent again
    assert area_here() is None  # this is no notebook


def test_in_a_notebook_nothing_goes_to_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    handle, stream = Handle(), io.StringIO()
    monkeypatch.setattr(progress, "_LIVE_INTERVAL_S", 0.01)
    monkeypatch.setattr(progress, "area_here", lambda: Area(handle))
    shown = Progress(lambda: FINISHED, ProgressMode.AUTO, stream)
    shown.start()
    shown.say("a note")
    wait_for(lambda: any(FINISHED.line() in text for text in handle.texts))
    shown.close()
    assert handle.texts[-1] == "a note"
    assert stream.getvalue() == ""


@pytest.fixture
def elsewhere() -> Iterator[list[str]]:
    """Every warning that is shown where Python shows them, each time."""
    shown: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_: shown.append(str(message))
        yield shown


@pytest.fixture
def area(elsewhere: list[str]) -> Iterator[Area]:
    """Where Ebbtide's go in place of that."""
    area = Area(Handle())
    warnings_go_to(area)
    yield area
    warnings_go_to(None)


def test_a_warning_goes_to_the_area(area: Area, elsewhere: list[str]) -> None:
    warn_user("a word")
    assert area._handle.texts == ["warning: a word"]
    assert elsewhere == []
    warnings.warn("of somebody else", UserWarning, stacklevel=1)
    assert elsewhere == ["of somebody else"]
    warnings_go_to(None)
    warn_user("after the session")
    assert elsewhere == ["of somebody else", "after the session"]
    assert area._handle.texts == ["warning: a word"]


def test_filters_and_whoever_records_warnings_come_before_the_area(
    area: Area, elsewhere: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warn_user("recorded")
    assert [str(warning.message) for warning in caught] == ["recorded"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warn_user("hidden")
        warnings.simplefilter("error")
        warn_user("an error")  # -W error: printed, and training goes on
        with pytest.raises(EbbtideWarning):
            warnings.warn("raised", EbbtideWarning, stacklevel=1)
    assert area._handle.texts == elsewhere == []
    assert capsys.readouterr().err == "ebbtide: warning: an error\n"


def test_what_others_put_over_it_may_call_it(area: Area, elsewhere: list[str]) -> None:
    before = warnings.showwarning
    warnings.showwarning = lambda *arguments: before(*arguments)
    another = Area(Handle())
    warnings_go_to(another)
    warn_user("a word")
    warnings.warn("of somebody else", UserWarning, stacklevel=1)
    assert another._handle.texts == ["warning: a word"]
    assert area._handle.texts == []
    assert elsewhere == ["of somebody else"]


def test_a_session_in_a_notebook_warns_in_its_area(
    native: FakeNative, elsewhere: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    handle = Handle()
    monkeypatch.setattr(progress, "area_here", lambda: Area(handle))
    session = Session("1GiB", settings=replace(QUIET, progress=ProgressMode.AUTO))
    session.start()
    session._warn("too little")
    session.close()
    assert "warning: too little" in handle.texts[-1]
    assert elsewhere == []
    assert capsys.readouterr().err == ""
    session._warn("too late")
    assert "too late" not in handle.texts[-1]
    assert elsewhere == ["too late"]


CELLS = (
    """
    import torch, ebbtide
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)])
    optimizer = torch.optim.AdamW(model.parameters())
    session = ebbtide.Session("60%", wait_for_plan=True, min_storage_bytes="4KiB").start()
    """,
    """
    for _ in range(8):
        optimizer.zero_grad()
        model(torch.randn(512, 256)).square().mean().backward()
        optimizer.step()
    assert ebbtide.active() is session
    ebbtide.Session("50%").start()
    """,
    """
    ebbtide.active().close()
    session.close()
    assert ebbtide.active() is None
    assert session.report().steps[-1].evicted_bytes.total > 0
    session
    """,
)


@pytest.mark.starts
def test_a_notebook_trains_and_shows_its_session(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="no notebook can be run: pip install nbclient ipykernel")
    nbclient = pytest.importorskip("nbclient", reason="no notebook can be run: pip install nbclient ipykernel")
    from textwrap import dedent

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(dedent(cell)) for cell in CELLS])
    here = {"metadata": {"path": tmp_path}}
    nbclient.NotebookClient(notebook, timeout=300, allow_errors=True, resources=here).execute()
    begun, trained, ended = (cell.outputs for cell in notebook.cells)
    (area,) = (output for output in begun if output.output_type == "display_data")
    assert "a step's tensors peak at" in area.data["text/plain"]
    assert not [output for output in (*begun, *ended) if output.output_type in ("stream", "error")], (begun, ended)
    (error,) = (output for output in trained if output.output_type == "error")  # the second session
    assert error.ename == "SessionError"
    (shown,) = (output for output in ended if output.output_type == "execute_result")
    assert "within budget" in shown.data["text/html"]


def test_a_session_that_is_closed_has_ended(native: FakeNative) -> None:
    assert ebbtide.active() is None
    session = Session("1GiB", settings=QUIET)
    session.close()  # not begun: nothing to end
    assert "not begun" in repr(session)
    assert "not begun" in session._repr_html_()
    assert session.start() is session
    assert ebbtide.active() is session
    assert "running" in repr(session)
    with pytest.raises(SessionError, match=r"ebbtide\.active\(\)\.close\(\)"):
        Session("1GiB", settings=QUIET).start()
    session.close()
    session.close()
    assert ebbtide.active() is None
    assert "<pre>Ebbtide: " in session._repr_html_()
    assert len(repr(session.report())) < 120
    with pytest.raises(SessionError, match="used once"):
        session.start()
