"""What people train with: a script of examples/integrations each, and how it is started without Ebbtide and with it."""

from dataclasses import dataclass, replace
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "examples" / "integrations"


@dataclass(frozen=True, slots=True)
class Case:
    """``packages`` are what the script needs, the first is whose version is shown. ``fast`` is the budget.

    ``launcher`` starts the script's processes, ``ranks`` of them. With ``inside`` the script itself is told the budget
    and has a session or a callback, else ``ebbtide run`` stands in front of it.
    """

    name: str
    about: str
    packages: tuple[str, ...]
    script: str
    fast: str
    arguments: tuple[str, ...] = ()
    launcher: str = ""
    ranks: int = 1
    inside: bool = False
    resumes: bool = False
    """Training stops half way, and goes on in another process with ``--resume``."""

    def plain(self, python: str, more: tuple[str, ...]) -> list[str]:
        return [*self._launch(python, (python,)), *self._script(more)]

    def within(self, python: str, more: tuple[str, ...]) -> list[str]:
        if self.inside:
            return [*self._launch(python, (python,)), *self._script((*more, "--fast", self.fast))]
        return [*self._launch(python, (python, "-m", "ebbtide", "run", "--fast", self.fast)), *self._script(more)]

    def _script(self, more: tuple[str, ...]) -> tuple[str, ...]:
        return (str(SCRIPTS / f"{self.script}.py"), *self.arguments, *more)

    def _launch(self, python: str, command: tuple[str, ...]) -> tuple[str, ...]:
        if self.launcher == "torchrun":
            ranks = ("--standalone", f"--nproc-per-node={self.ranks}", "--no-python")
            return (python, "-m", "torch.distributed.run", *ranks, *command)
        if self.launcher == "deepspeed":
            ranks = (f"--num_accelerators={self.ranks}", "--no_local_rank")
            return (python, "-m", "deepspeed.launcher.runner", *ranks, "--no_python", *command)
        if self.launcher == "accelerate":
            ranks = ("--cpu", f"--num_processes={self.ranks}", "--num_machines=1", "--mixed_precision=no")
            return (python, "-m", "accelerate.commands.launch", *ranks, "--no_python", *command)
        return command


_TRAINER = ("transformers", "accelerate")
_LIGHTNING = ("lightning", "transformers")


def _ranks(name: str, about: str, script: str, *arguments: str, inside: bool = False) -> Case:
    """Of torch alone, two of them."""
    return Case(name, about, ("torch",), script, "45%", arguments, launcher="torchrun", ranks=2, inside=inside)


def _zero(stage: int, about: str, option: str = "", fast: str = "60%", ranks: int = 2, inside: bool = False) -> Case:
    """Of DeepSpeed, with an option of the script's."""
    name = "-".join(filter(None, ("deepspeed", str(stage), option, "session" * inside)))
    packages = ("deepspeed", "transformers", *("ninja",) * (option == "offload"))
    arguments = ("--stage", str(stage), *(f"--{option}",) * bool(option))
    return Case(name, about, packages, "deepspeed_zero", fast, arguments, "torchrun", ranks, inside)


_BY_CALLBACK, _BY_SESSION = "the same, by the callback", "the same, by a session"
CASES = (
    Case(
        "trainer",
        "`Trainer`: accumulation, clipping, evaluation, checkpoints",
        _TRAINER,
        "transformers_trainer",
        "30%",
    ),
    Case("trainer-callback", _BY_CALLBACK, _TRAINER, "transformers_trainer", "30%", inside=True),
    Case("trainer-resume", "the same, stopped and resumed", _TRAINER, "transformers_trainer", "30%", resumes=True),
    Case(
        "trainer-checkpointing",
        "the same, with gradient checkpointing",
        _TRAINER,
        "transformers_trainer",
        "45%",
        ("--gradient-checkpointing",),
    ),
    Case(
        "accelerate",
        "accumulation, clipping, `save_state`, `load_state`",
        _TRAINER[::-1],
        "accelerate_script",
        "30%",
    ),
    Case("accelerate-session", _BY_SESSION, _TRAINER[::-1], "accelerate_script", "30%", inside=True),
    Case(
        "accelerate-launch",
        "`accelerate launch`",
        _TRAINER[::-1],
        "accelerate_script",
        "30%",
        launcher="accelerate",
    ),
    Case("trl", "`SFTTrainer`", ("trl", "datasets"), "trl_sft", "60%"),
    Case("trl-callback", _BY_CALLBACK, ("trl", "datasets"), "trl_sft", "60%", inside=True),
    Case("peft", "LoRA", ("peft", "transformers"), "peft_lora", "30%"),
    Case("peft-session", _BY_SESSION, ("peft", "transformers"), "peft_lora", "30%", inside=True),
    Case(
        "qlora",
        "QLoRA: `Linear4bit`, `AdamW8bit`, LoRA by PEFT",
        ("bitsandbytes", "peft", "transformers"),
        "qlora",
        "50%",
    ),
    Case("torchao", "`quantize_` to int8, `AdamW8bit`", ("torchao",), "torchao_int8", "50%"),
    Case(
        "lightning",
        "`Trainer`: accumulation, clipping, validation, checkpoints",
        _LIGHTNING,
        "lightning_trainer",
        "30%",
    ),
    Case("lightning-callback", _BY_CALLBACK, _LIGHTNING, "lightning_trainer", "30%", inside=True),
    Case(
        "lightning-ddp",
        "the same, two ranks that Lightning starts",
        _LIGHTNING,
        "lightning_trainer",
        "60%",
        ("--devices", "2"),
        ranks=2,
        inside=True,
    ),
    Case(
        "compile",
        "`torch.compile` of the model and of `optimizer.step`",
        ("torch", "transformers"),
        "compiled",
        "50%",
    ),
    Case("compile-session", _BY_SESSION, ("torch", "transformers"), "compiled", "50%", inside=True),
    Case("compile-model", "of the model alone", ("torch", "transformers"), "compiled", "50%", ("--only", "model")),
    Case("compile-step", "of the step alone", ("torch", "transformers"), "compiled", "50%", ("--only", "step")),
    _ranks("ddp", "`DistributedDataParallel`", "ddp"),
    _ranks("ddp-session", _BY_SESSION, "ddp", inside=True),
    _ranks("ddp-static", "`gradient_as_bucket_view`, `static_graph`", "ddp", "--static"),
    _ranks("fsdp2", "`fully_shard`, `torch.distributed.checkpoint`", "fsdp2"),
    _ranks("fsdp2-session", _BY_SESSION, "fsdp2", inside=True),
    _ranks("zero-redundancy", "`ZeroRedundancyOptimizer`", "zero_redundancy"),
    _ranks("zero-redundancy-session", _BY_SESSION, "zero_redundancy", inside=True),
    _zero(1, "ZeRO stage 1"),
    replace(_zero(1, "the same, started by `deepspeed`"), name="deepspeed-launcher", launcher="deepspeed"),
    _zero(1, "the same, buckets of the default size", "default-buckets", fast="80%"),
    _zero(2, "ZeRO stage 2"),
    _zero(3, "ZeRO stage 3"),
    _zero(3, _BY_SESSION, inside=True),
    _zero(2, "ZeRO stage 2, optimizer offloaded", "offload", ranks=1),
)
