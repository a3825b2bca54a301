/* Which storages are chosen, by the form of the section that draws them, and in what order. */

import { choose, chosenAs, followAddress } from "./address.js";
import { byNumber, bytes, count, element, kindName } from "./words.js";

let selection = null;

/* The page's one selection. */
export function selectionOf(data) {
  selection ??= new Selection(data);
  return selection;
}

/* Of each of the names, which one it is when they are in order. */
function placesByName(names) {
  const places = new Int32Array(names.length);
  const order = Array.from(names.keys()).sort((one, other) => byNumber(names[one], names[other]));
  for (const [place, name] of order.entries()) places[name] = place;
  return places;
}

/* Listeners are told of changes, and whether others are chosen or only the order differs. `show(storage)` shows one in
   the chart; whoever draws that chart sets it. */
class Selection {
  constructor({ trace, intervals }) {
    this.trace = trace;
    this.show = () => {};
    this.listeners = [];
    this.form = document.getElementById("filter");
    const { nbytes, module, line, kind, birth } = trace.storages;
    this.idle = new Float64Array(nbytes.length);
    intervals?.storage.forEach((storage, row) => {
      this.idle[storage] += intervals.byte_seconds[row];
    });
    const place = placesByName(trace.strings);
    this.by = {
      birth: (one, other) => birth[one] - birth[other] || one - other,
      size: (one, other) => nbytes[other] - nbytes[one] || one - other,
      idle: (one, other) => this.idle[other] - this.idle[one] || one - other,
      module: (one, other) => place[module[one]] - place[module[other]] || kind[one] - kind[other] || one - other,
      line: (one, other) => place[line[one]] - place[line[other]] || kind[one] - kind[other] || one - other,
    };
    const kinds = document.getElementById("kinds");
    trace.kinds.forEach((name, number) => {
      const label = element("label");
      const box = element("input", "", { type: "checkbox", name: "kind", value: number });
      box.defaultChecked = true; // also after a reset
      label.append(box, element("span", "", { class: "swatch", style: `background: var(--${name})` }), kindName(name));
      kinds.append(label);
    });
    this.form.addEventListener("submit", (event) => event.preventDefault());
    let edits = false; // a text that is being typed is one address
    this.form.addEventListener("input", () => {
      this.apply();
      this.name({ here: edits });
      edits = true;
    });
    this.form.addEventListener("change", () => {
      edits = false;
    });
    this.follow();
    followAddress(() => this.follow());
  }

  name(how) {
    const { text, size, order } = this.form.elements;
    const without = Array.from(this.form.querySelectorAll("[name=kind]:not(:checked)"), ({ value }) => value).join();
    const least = size.value !== size.defaultValue && size.value;
    choose({ text: text.value, size: least, order: order.selectedIndex && order.value, without, storage: null }, how);
  }

  follow() {
    this.form.reset();
    const { elements } = this.form;
    for (const name of ["text", "size", "order"]) elements[name].value = chosenAs(name) ?? elements[name].value;
    if (!elements.order.value) elements.order.selectedIndex = 0;
    const without = chosenAs("without")?.split(",") ?? [];
    for (const box of this.form.querySelectorAll("[name=kind]")) box.checked = !without.includes(box.value);
    this.apply();
  }

  apply() {
    const { storages, strings, kinds } = this.trace;
    const fields = new FormData(this.form);
    const wanted = fields.get("text").trim().toLowerCase();
    const least = (Number(fields.get("size")) || 0) * 2 ** 20;
    const isNamed = strings.map((name) => name.toLowerCase().includes(wanted));
    const ofKind = kinds.map((_, number) => fields.getAll("kind").includes(String(number)));
    const before = this.chosen;
    this.chosen = Uint8Array.from(
      storages.nbytes,
      (nbytes, storage) =>
        nbytes >= least &&
        (isNamed[storages.module[storage]] || isNamed[storages.line[storage]]) &&
        ofKind[storages.kind[storage]],
    );
    this.order = [...this.chosen.keys()].filter((storage) => this.chosen[storage]).sort(this.by[fields.get("order")]);
    const total = this.order.reduce((sum, storage) => sum + storages.nbytes[storage], 0);
    this.form.elements.count.value = `${count(this.order.length)} of ${count(storages.nbytes.length)} storages, ${bytes(total)} in all`;
    const same = before?.every((was, storage) => was === this.chosen[storage]);
    for (const listener of this.listeners) listener(!same);
  }

  /* Makes sure that a storage is among the chosen. */
  include(storage) {
    if (this.chosen[storage]) return;
    const order = this.form.elements.order.value;
    this.form.reset();
    this.form.elements.order.value = order;
    this.apply();
    this.name({ here: true });
  }
}
