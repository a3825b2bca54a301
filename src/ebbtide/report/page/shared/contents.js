/* What is there at any tick of the step: as `analysis/memory.py` has it, which says what these figures are. */

import { byNumber } from "./words.js";

/* The fields are those of the page's data of the peak. */
export function contentsAt({ trace, intervals }, tick) {
  const { storages, strings, kinds, ticks, start_ns, step_ns } = trace;
  const n_ticks = start_ns.length - 1;
  const startOf = (at) => Math.floor(at / n_ticks) * step_ns + start_ns[at % n_ticks];
  const times = (storage) =>
    Math.ceil((storages.death[storage] - tick) / n_ticks) - Math.ceil((storages.birth[storage] - tick) / n_ticks);
  /* In the ticks of its youngest generation. */
  const latest = (storage) => (storages.persistent[storage] || tick >= storages.birth[storage] ? tick : tick + n_ticks);
  const nbytes = (storage) => times(storage) * storages.nbytes[storage];
  const there = Array.from(storages.nbytes.keys()).filter(
    (storage) => times(storage) > 0 && !storages.roomless[storage],
  );
  there.sort((one, other) => nbytes(other) - nbytes(one) || one - other);
  const idle = idleAround({ trace, intervals }, latest, startOf);
  const shares = (label) => {
    const sums = new Map();
    for (const storage of there) {
      const [held, number] = sums.get(label(storage)) || [0, 0];
      sums.set(label(storage), [held + nbytes(storage), number + times(storage)]);
    }
    const rows = Array.from(sums, ([name, [held, number]]) => [name, held, number]);
    return rows.sort(([one, held], [other, more]) => more - held || byNumber(one, other));
  };
  return {
    tick,
    time_ns: start_ns[tick],
    nbytes: there.reduce((sum, storage) => sum + nbytes(storage), 0),
    operator: strings[ticks.operator[tick]],
    module: strings[ticks.module[tick]],
    kinds: shares((storage) => kinds[storages.kind[storage]]),
    modules: shares((storage) => strings[storages.module[storage]]),
    lines: shares((storage) => strings[storages.line[storage]]),
    operators: there.map((storage) =>
      storages.persistent[storage] ? "" : strings[ticks.operator[storages.birth[storage]]],
    ),
    residents: {
      storage: there,
      nbytes: there.map(nbytes),
      age_ns: there.map((storage) =>
        storages.persistent[storage] ? -1 : startOf(latest(storage)) - start_ns[storages.birth[storage]],
      ),
      idle_ns: there.map((storage) => idle[storage]),
    },
  };
}

/* Of every storage how long its idle interval around the tick lasts: 0 in use, -1 if no further use is known. */
function idleAround({ trace, intervals }, latest, startOf) {
  const { storages, accesses, start_ns } = trace;
  const n_ticks = start_ns.length - 1;
  const idle = new Float64Array(storages.nbytes.length).fill(-1);
  intervals?.storage.forEach((storage, row) => {
    const at = latest(storage);
    const around = (now) => intervals.after[row] < now && now < intervals.until[row];
    if (around(at) || (storages.persistent[storage] && around(at + n_ticks))) idle[storage] = intervals.idle_ns[row];
  });
  const first = new Map();
  accesses.storage.forEach((storage, row) => {
    if (!first.has(storage)) first.set(storage, accesses.tick[row]);
  });
  for (const [storage, tick] of first)
    if (!storages.scratch[storage] && !storages.persistent[storage] && tick > latest(storage))
      idle[storage] = startOf(tick) - startOf(storages.birth[storage] + 1);
  for (const storage of storages.nbytes.keys())
    if (storages.scratch[storage] || (!storages.persistent[storage] && latest(storage) === storages.birth[storage]))
      idle[storage] = 0;
  accesses.storage.forEach((storage, row) => {
    if (accesses.tick[row] === latest(storage)) idle[storage] = 0;
  });
  return idle;
}
