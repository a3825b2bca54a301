/* What is said of one storage: its kind, module and line, its life, how long it waits, and what the plan does with it. */

import { firstPlace } from "./data.js";
import { byteSeconds, bytes, count, element, kindName, time } from "./words.js";

const VERDICTS = [
  "too short to move meanwhile",
  "long enough to move, if only alone on the links",
  "long enough to move",
];

export class StorageWords {
  constructor({ trace, intervals, away }, selection) {
    Object.assign(this, { trace, intervals, away, selection });
    this.n_ticks = trace.start_ns.length - 1;
  }

  /* Elements, a line each. */
  of(storage) {
    const { storages, strings, kinds, lines_known } = this.trace;
    const head = `#${storage}: ${bytes(storages.nbytes[storage])}, ${kindName(kinds[storages.kind[storage]])}`;
    const line = strings[storages.line[storage]];
    const module = strings[storages.module[storage]];
    const said = [
      module || (line ? "" : "(no module)"),
      line
        ? `made at ${line}`
        : lines_known
          ? "made at no line that is known: the step found it, or a thread made it"
          : "",
      `${this.life(storage)}; ${this.uses(storage)}${this.idle(storage)}.`,
      ...this.moves(storage),
    ];
    const command = element("div", "In words: ");
    command.append(element("code", `ebbtide explain ${this.trace.file} --storage ${storage}`));
    return [element("strong", head), ...said.filter(Boolean).map((text) => element("div", text)), command];
  }

  operator(tick) {
    return this.trace.strings[this.trace.ticks.operator[tick % this.n_ticks]];
  }

  /* After the beginning of the step; a tick may lie in a later one. */
  at(tick) {
    return Math.floor(tick / this.n_ticks) * this.trace.step_ns + this.trace.start_ns[tick % this.n_ticks];
  }

  life(storage) {
    const { persistent, birth, death } = this.trace.storages;
    if (persistent[storage]) return "lives before, through and after the step";
    const born = `${time(this.at(birth[storage]))} (${this.operator(birth[storage]) || "?"})`;
    return `lives from ${born} for ${time(this.at(death[storage]) - this.at(birth[storage]))}`;
  }

  uses(storage) {
    const { storages, accesses } = this.trace;
    if (storages.scratch[storage]) return "scratch, in use throughout";
    const [from, to] = [firstPlace(accesses.storage, storage), firstPlace(accesses.storage, storage, true)];
    const [first, last] = [from, to - 1].map((row) => this.operator(accesses.tick[row]));
    return `${count(to - from)} accesses${to > from ? `, first by ${first}, last by ${last}` : ""}`;
  }

  idle(storage) {
    const waits = this.selection.idle[storage];
    return waits ? `; idle between uses for ${byteSeconds(waits)} in all` : "";
  }

  /* Its longest wait, and when the plan has it elsewhere. */
  moves(storage) {
    const said = [];
    const { intervals, away } = this;
    let row = -1;
    intervals?.storage.forEach((other, place) => {
      if (other === storage && (row < 0 || intervals.idle_ns[place] > intervals.idle_ns[row])) row = place;
    });
    if (row >= 0 && intervals.idle_ns[row]) {
      const verdict = intervals.alone ? `: ${VERDICTS[intervals.alone[row] + intervals.queued[row]]}` : "";
      const [after, until] = [intervals.after[row], intervals.until[row]].map((tick) => this.operator(tick));
      said.push(`Idle longest for ${time(intervals.idle_ns[row])}, from ${after} to ${until}${verdict}.`);
    }
    away?.storage.forEach((other, place) => {
      if (other !== storage) return;
      const back = away.back[place] < 0 ? "until its end" : `to ${time(this.at(away.back[place]))}`;
      const where = away.tier[place] ? ` (in ${away.tier[place]})` : "";
      said.push(`The plan has it away from ${time(this.at(away.gone[place]))} ${back}${where}.`);
    });
    return said;
  }
}
