"""What people train with: a script of examples/integrations each, and how it is started without Ebbtide and with it."""

from dataclasses import dataclass
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "examples" / "integrations"


@dataclass(frozen=True, slots=True)
class Case:
    """``packages`` are what the script needs, the first is whose version is shown. ``fast`` is the budget.

    ``launcher`` starts the script's processes, ``ranks`` of them. With ``callback`` the script itself is told the
    budget, else ``ebbtide run`` stands in front of it.
    """

    name: str
    about: str
    packages: tuple[str, ...]
    script: str
    fast: str
    arguments: tuple[str, ...] = ()
    launcher: str = ""
    ranks: int = 1
    callback: bool = False
    resumes: bool = False
    """Training stops half way, and goes on in another process with ``--resume``."""

    def plain(self, python: str, more: tuple[str, ...]) -> list[str]:
        return [*self._launch(python, (python,)), *self._script(more)]

    def within(self, python: str, more: tuple[str, ...]) -> list[str]:
        if self.callback:
            return [*self._launch(python, (python,)), *self._script((*more, "--fast", self.fast))]
        return [*self._launch(python, (python, "-m", "ebbtide", "run", "--fast", self.fast)), *self._script(more)]

    def _script(self, more: tuple[str, ...]) -> tuple[str, ...]:
        return (str(SCRIPTS / self.script), *self.arguments, *more)

    def _launch(self, python: str, command: tuple[str, ...]) -> tuple[str, ...]:
        if self.launcher == "torchrun":
            ranks = ("--standalone", f"--nproc-per-node={self.ranks}", "--no-python")
            return (python, "-m", "torch.distributed.run", *ranks, *command)
        if self.launcher == "accelerate":
            ranks = ("--cpu", f"--num_processes={self.ranks}", "--num_machines=1", "--mixed_precision=no")
            return (python, "-m", "accelerate.commands.launch", *ranks, "--no_python", *command)
        return command


TRAINER = ("transformers", "accelerate")
CASES = (
    Case(
        "trainer",
        "`Trainer`: accumulation, clipping, evaluation, checkpoints",
        TRAINER,
        "transformers_trainer.py",
        "30%",
    ),
    Case("trainer-callback", "the same, by the callback", TRAINER, "transformers_trainer.py", "30%", callback=True),
    Case("trainer-resume", "the same, stopped and resumed", TRAINER, "transformers_trainer.py", "30%", resumes=True),
    Case(
        "trainer-checkpointing",
        "the same, with gradient checkpointing",
        TRAINER,
        "transformers_trainer.py",
        "45%",
        ("--gradient-checkpointing",),
    ),
    Case(
        "accelerate", "accumulation, clipping, `save_state`, `load_state`", TRAINER[::-1], "accelerate_script.py", "30%"
    ),
    Case(
        "accelerate-launch", "`accelerate launch`", TRAINER[::-1], "accelerate_script.py", "30%", launcher="accelerate"
    ),
    Case("trl", "`SFTTrainer`", ("trl", "datasets"), "trl_sft.py", "60%"),
    Case("trl-callback", "the same, by the callback", ("trl", "datasets"), "trl_sft.py", "60%", callback=True),
    Case("peft", "LoRA", ("peft", "transformers"), "peft_lora.py", "30%"),
    Case(
        "lightning",
        "`Trainer`: accumulation, clipping, validation, checkpoints",
        ("lightning",),
        "lightning_trainer.py",
        "30%",
    ),
    Case(
        "lightning-callback", "the same, by the callback", ("lightning",), "lightning_trainer.py", "30%", callback=True
    ),
    Case(
        "compile",
        "`torch.compile` of the model and of `optimizer.step`",
        ("torch", "transformers"),
        "compiled.py",
        "50%",
    ),
    Case("ddp", "`DistributedDataParallel`", ("torch",), "ddp.py", "45%", launcher="torchrun", ranks=2),
    Case(
        "fsdp2",
        "`fully_shard`, `torch.distributed.checkpoint`",
        ("torch",),
        "fsdp2.py",
        "45%",
        launcher="torchrun",
        ranks=2,
    ),
    Case(
        "zero-redundancy",
        "`ZeroRedundancyOptimizer`",
        ("torch",),
        "zero_redundancy.py",
        "45%",
        launcher="torchrun",
        ranks=2,
    ),
    *(
        Case(
            f"deepspeed-{stage}{'-offload' * offload}",
            f"ZeRO stage {stage}{', optimizer offloaded' * offload}",
            ("deepspeed", "transformers"),
            "deepspeed_zero.py",
            "60%",
            ("--stage", str(stage), *("--offload",) * offload),
            launcher="torchrun",
            ranks=2 - offload,
        )
        for stage, offload in ((1, False), (2, False), (3, False), (2, True))
    ),
)
