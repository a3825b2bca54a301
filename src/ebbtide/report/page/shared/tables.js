/* Tables that sort by a click or a key on their headings, and show a few rows until more are asked for. */

import { onPrint, paper } from "./paper.js";
import { button, byNumber, count, element } from "./words.js";

const ROWS = 12;
const ROWS_ON_PAPER = 30;

/* The column of the lines that made storages, or none where they were not recorded; for other tables than of storages,
   `storageOf(row)` says which one a row is of. */
export function lineColumn({ lines_known, storages, strings }, storageOf) {
  const line = (row) => strings[storages.line[storageOf(row)]];
  return lines_known ? [{ title: "Line", value: line, text: line }] : [];
}

/* A column is {title, value(row) -> what sorts, text(row) -> what is read, number: whether it is one}.
   `rows` are any numbers; `sorted` is [column, descending]; `action(row)` makes a button for the last cell. */
export class Table {
  constructor(parent, columns, rows, { sorted = [0, false], action = null, caption = "" } = {}) {
    Object.assign(this, { columns, action, shown: ROWS });
    [this.column, this.descending] = sorted;
    this.body = element("tbody");
    this.more = button("", "Show more rows", () => {
      this.shown *= 5;
      this.fill();
    });
    this.more.classList.add("more");
    this.heads = columns.map(({ title, number }, place) => {
      const head = element("th", "", number ? { class: "number", scope: "col" } : { scope: "col" });
      const unbroken = title.replaceAll("->", "-\u2060>");
      head.append(button(unbroken, `Sort by ${title}`, () => this.sortBy(place)));
      return head;
    });
    const line = element("tr");
    line.append(...this.heads);
    if (action) line.append(element("td"));
    const head = element("thead");
    head.append(line);
    const table = element("table");
    if (caption) table.setAttribute("aria-label", caption);
    table.append(head, this.body);
    const scroll = element("div", "", {
      class: "scroll",
      tabindex: "0",
      role: "region",
      "aria-label": caption || "Table",
    });
    scroll.append(table);
    parent.replaceChildren(scroll, this.more);
    onPrint(() => this.fill());
    this.show(rows);
  }

  show(rows) {
    this.rows = Array.from(rows);
    this.sort();
  }

  sortBy(place) {
    this.descending = place === this.column ? !this.descending : Boolean(this.columns[place].number);
    this.column = place;
    this.sort();
  }

  sort() {
    const { value } = this.columns[this.column];
    const sign = this.descending ? -1 : 1;
    const keys = new Map(this.rows.map((row) => [row, value(row)]));
    const compare = (one, other) => (typeof one === "string" ? byNumber(one, other) : one - other);
    this.rows.sort((one, other) => sign * compare(keys.get(one), keys.get(other)) || one - other);
    this.heads.forEach((head, place) => {
      if (place === this.column) head.setAttribute("aria-sort", this.descending ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    this.fill();
  }

  fill() {
    const lines = this.rows.slice(0, paper.printing ? ROWS_ON_PAPER : this.shown).map((row) => {
      const line = element("tr");
      for (const { text, number } of this.columns)
        line.append(number ? element("td", text(row), { class: "number" }) : breakable(text(row)));
      if (this.action) {
        const cell = element("td");
        cell.append(this.action(row));
        line.append(cell);
      }
      return line;
    });
    this.body.replaceChildren(...lines);
    const left = this.rows.length - lines.length;
    this.more.hidden = left <= 0;
    this.more.textContent = paper.printing
      ? `${count(left)} further rows are not printed`
      : `Show ${count(Math.min(left, 4 * this.shown))} more of ${count(this.rows.length)} rows`;
  }
}

/* A cell whose names may be broken where their parts meet. */
function breakable(text) {
  const cell = element("td");
  for (const [place, part] of text.split(/(?<=[._:>,])(?=[^._:>,])/).entries()) {
    if (place) cell.append(element("wbr"));
    cell.append(part);
  }
  return cell;
}
