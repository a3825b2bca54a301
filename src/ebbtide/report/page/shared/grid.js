/* Machines of a sweep's grid as charts name and group them. */

import { bytes, plain, time } from "./words.js";

export const SERIES = ["parameter", "gradient", "optimizer_state", "activation", "write", "other"];

export function dollars(value) {
  return value === null ? "\u2013" : `$${Number(value.toPrecision(4))}`;
}

export function machineName(point) {
  return `${bytes(point.fast_bytes)} fast (${point.ratio}), links \u00d7 ${point.bandwidth}`;
}

/* Rows of (name of the series, its points), one series for each value of `key`. */
export function grouped(points, key) {
  const values = [...new Set(points.map((point) => point[key]))].sort((one, other) => one - other);
  return values.map((value) => [value, points.filter((point) => point[key] === value)]);
}

/* All there is, with a margin, so that marks at the edges are seen whole. */
export function spanOf(values, part = 0.06) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const margin = part * (high - low || Math.abs(high) || 1);
  return [low - margin, high + margin];
}

export function hover(point) {
  const lines = [machineName(point), time(point.step_ns)];
  if (point.memory_usd !== null) lines.push(`memory ${dollars(point.memory_usd)}`);
  if (point.step_usd !== null) lines.push(`1000 steps ${dollars(1000 * point.step_usd)}`);
  return plain(lines.join(", "));
}
