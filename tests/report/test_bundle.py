"""The page's scripts as one text: what a module sees of others, and what is refused."""

import re

import pytest

from ebbtide.report.bundle import bundle
from tests.helpers.paths import ROOT

FILES = {
    "report/tab.js": 'import { one } from "../shared/one.js";\none();\n',
    "shared/one.js": 'import { Two } from "./two.js";\n\nexport async function one() {}\nconst hidden = Two;\n',
    "shared/two.js": "export class Two {}\nexport const three = 3;\n",
}


def bundled(**changed: str) -> str:
    texts = FILES | {f"{name.replace('__', '/')}.js": text for name, text in changed.items()}
    return bundle(["report/tab.js", "shared/two.js"], texts.__getitem__)


def test_a_module_stands_once_and_behind_what_it_imports() -> None:
    text = bundled()
    order = re.findall(r'^modules\["(.*?)"\] = ', text, re.MULTILINE)
    assert order == ["shared/two.js", "shared/one.js", "report/tab.js"]
    assert re.findall(r"^return \{(.*)\};", text, re.MULTILINE) == [" Two, three ", " one ", "  "]
    assert 'const { Two } = modules["shared/two.js"];' in text
    assert not re.search(r"^(import|export)", text, re.MULTILINE)


def test_an_import_may_have_several_lines() -> None:
    text = bundled(report__tab='import {\n  three,\n  Two,\n} from "../shared/two.js";\n')
    assert 'const {\n  three,\n  Two,\n} = modules["shared/two.js"];' in text


@pytest.mark.parametrize(
    ("module", "says"),
    [
        ('import { hidden } from "../shared/one.js";\n', "imports hidden, which shared/one.js does not export"),
        ('import { one as other } from "../shared/one.js";\n', "imports one as other"),
        ('import one from "../shared/one.js";\n', "not a form"),
        ('import * as one from "../shared/one.js";\n', "not a form"),
        ('import "../shared/one.js";\n', "not a form"),
        ("export default 3;\n", "not a form"),
        ("export let three = 3;\n", "not a form"),
        ("export { three };\n", "not a form"),
    ],
)
def test_other_forms_are_refused(module: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        bundled(report__tab=module)


def test_a_circle_is_refused() -> None:
    with pytest.raises(ValueError, match=r"shared/one\.js shared/two\.js shared/one\.js"):
        bundled(shared__two='import { one } from "./one.js";\nexport class Two {}\n')


def test_every_section_has_an_id_and_a_place_of_its_own() -> None:
    scripts = (ROOT / "src/ebbtide/report/page/report").glob("*.js")
    texts = [script.read_text() for script in scripts]
    counts = [text.count("addSection({") for text in texts]
    assert all(counts)
    for field in (r'id: "(.*)"', r'title: "(.*)"', r"place: (\d+)"):
        found = [value for text in texts for value in re.findall(rf"^  {field},$", text, re.MULTILINE)]
        assert len(set(found)) == len(found) == sum(counts)
