"""``ebbtide`` in this process: what a command says, or the error that it ends with."""

from click.testing import CliRunner, Result

from ebbtide.cli import cli


def call(*words: object) -> Result:
    return CliRunner().invoke(cli, list(map(str, words)))


def said(*words: object) -> str:
    """Standard output of a command that ends well."""
    result = call(*words)
    assert result.exception is None, (result.exception, result.output)
    return result.stdout
