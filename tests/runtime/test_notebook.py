"""A notebook's kernel trains in a session that no block encloses, and shows it in one area, not on standard error."""

import io
from pathlib import Path

import pytest

import ebbtide
from ebbtide.errors import SessionError
from ebbtide.runtime import progress
from ebbtide.runtime.notebook import Area, area_here
from ebbtide.runtime.progress import Progress
from ebbtide.session import Session
from ebbtide.settings import ProgressMode
from tests.helpers.fake_native import QUIET, FakeNative
from tests.runtime.test_progress import FINISHED, wait_for


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
