"""Which storages are a step's inputs: found by who makes them and who uses them."""

from dataclasses import replace

from ebbtide.capture.inputs import inputs_of, with_inputs
from ebbtide.ir.trace import Phase, Storage, StorageKind, Ticks, Trace
from tests.helpers.make_steps import PAGE, R, W, parameter, step

OTHER, ACTIVATION = StorageKind.OTHER, StorageKind.ACTIVATION
MODULES = ["", "", "net", "net", "", "net", ""]  # load, normalize, two of the network, loss, backward, update
PHASES = [Phase.FORWARD] * 5 + [Phase.BACKWARD, Phase.OPTIMIZER]
LATE = 7  # where storages of the step die


def made(storages: list[Storage], uses: list[tuple[int, int, int]]) -> Trace:
    trace = step([10] * len(MODULES), storages, uses)
    named = zip(trace.ticks, MODULES, PHASES, strict=True)
    return replace(
        trace, ticks=Ticks.from_rows(replace(row, module=module, phase=phase) for row, module, phase in named)
    )


def inputs(storages: list[Storage], uses: list[tuple[int, int, int]]) -> list[int]:
    found: list[int] = inputs_of(made(storages, uses)).nonzero()[0].tolist()
    return found


def test_a_batch_and_its_labels_are_inputs_and_what_the_network_makes_is_not() -> None:
    storages = [
        parameter(PAGE, LATE),
        Storage(PAGE, OTHER, 0, LATE),  # the batch, from the loader, which only the next is made from
        Storage(PAGE, ACTIVATION, 1, LATE),  # normalized
        Storage(PAGE, OTHER, 0, LATE),  # labels, which only the loss reads
        Storage(PAGE, ACTIVATION, 2, LATE),  # what the network makes of it
        Storage(PAGE, ACTIVATION, 4, LATE),  # the loss, out of that and the labels
        Storage(PAGE, OTHER, 0, LATE),  # which nothing reads
    ]
    uses = [(0, 2, R), (0, 6, R | W), (1, 0, W), (1, 1, R), (2, 1, W), (2, 2, R), (3, 0, W), (3, 4, R)]
    uses += [(4, 2, W), (4, 4, R), (5, 4, W), (5, 5, R), (6, 0, W)]
    assert inputs(storages, uses) == [1, 2, 3]
    kinds = with_inputs(made(storages, uses)).storages.kind.tolist()
    assert kinds == [StorageKind.PARAMETER, *[StorageKind.INPUT] * 3, ACTIVATION, ACTIVATION, OTHER]


def test_what_is_made_of_the_network_outside_of_its_modules_is_not_an_input() -> None:
    """A weighted sum, say, that goes into the next module; and what that writes in place."""
    storages = [parameter(PAGE, LATE), Storage(PAGE, OTHER, 1, LATE), Storage(PAGE, OTHER, 0, LATE)]
    uses = [(0, 1, R), (1, 1, W), (1, 2, R), (2, 0, W), (2, 1, R), (2, 3, R | W)]
    assert inputs(storages, uses) == []


def test_a_batch_of_a_data_set_that_stays_is_an_input_and_the_data_set_is_not() -> None:
    data = Storage(PAGE, OTHER, 0, LATE, persistent=True)
    storages = [data, Storage(PAGE, OTHER, 1, LATE)]
    assert inputs(storages, [(0, 1, R), (0, 2, R), (1, 1, W), (1, 2, R)]) == [1]


def test_a_batch_that_is_loaded_a_step_ahead_is_an_input() -> None:
    ahead = Storage(PAGE, OTHER, 1, LATE + 6)
    assert inputs([ahead], [(0, 1, W), (0, LATE + 2, R)]) == [0]


def test_what_only_the_optimizer_reads_or_the_backward_pass_makes_is_not_an_input() -> None:
    rate, seed = Storage(PAGE, OTHER, 0, LATE), Storage(PAGE, ACTIVATION, 5, LATE)
    assert inputs([rate, seed], [(0, 0, W), (0, 6, R), (1, 5, W)]) == []
