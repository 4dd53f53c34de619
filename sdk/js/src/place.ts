/**
 * The place of one token, computed from boards alone. No I/O.
 *
 * A board says how far admission has come (`admitted_through`) and which tokens stopped waiting since the board before
 * (`holes`). All holes between `admitted_through` and a token give the token's exact position, however many others wait:
 *
 *     position = token - admitted_through - holes between the two
 */

import type { Holes } from "./types.js";

/**
 * The most ranges of holes that are kept for one token. Beyond it the place comes from polls alone, so that memory stays
 * bounded even if every second one of millions leaves.
 */
export const RANGES_MAX = 65_536;

/** Ranges in order, without overlaps and not adjacent, of numbers between `after` and `before`. */
export function union(ranges: Holes, after: number, before: number): Array<[number, number]> {
  const disjoint: Array<[number, number]> = [];
  for (const [from, to] of [...ranges].sort(([a], [b]) => a - b)) {
    const first = Math.max(from, after + 1);
    const last = Math.min(to, before - 1);
    const previous = disjoint.at(-1);
    if (previous && first <= previous[1] + 1) previous[1] = Math.max(previous[1], last);
    else if (first <= last) disjoint.push([first, last]);
  }
  return disjoint;
}

/** Whether boards are missing between the version `known` and a board that builds on `prevVersion`. */
export function isGap(known: number, prevVersion: number): boolean {
  return prevVersion > known || prevVersion === 0;
}

/** The exact place of one token in its lane: unknown at first, and after a gap. */
export class Place {
  readonly token: number;
  /** Of the state that is known; undefined while none is. */
  version: number | undefined;
  admittedThrough = 0;
  passed = false;
  #holes: Array<[number, number]> = [];
  #count = 0;

  constructor(token: number) {
    this.token = token;
  }

  /** 1 = next. Undefined while it is not known, and once the token waits no longer. */
  get position(): number | undefined {
    if (this.version === undefined || this.passed) return undefined;
    const position = this.token - this.admittedThrough - this.#count;
    return position > 0 ? position : undefined;
  }

  /** Makes the place unknown until the next status. */
  forget(): void {
    this.version = undefined;
    this.#holes = [];
    this.#count = 0;
  }

  /** Takes a status that was asked with `holes`. One that is older than what is known is ignored. */
  sync(version: number, admittedThrough: number, holes: Holes): void {
    if (this.version !== undefined && this.version > version) return;
    this.version = version;
    this.passed = admittedThrough >= this.token;
    this.admittedThrough = admittedThrough;
    this.#dig(holes);
  }

  /** Takes a board: of the token's own lane `admitted_through` and `holes`. */
  board(
    version: number,
    prevVersion: number,
    admittedThrough: number,
    holes: Holes,
  ): "stale" | "gap" | "position" | "passed" {
    if (this.version === undefined) return "gap";
    if (version <= this.version) return "stale";
    if (isGap(this.version, prevVersion)) {
      this.forget();
      return "gap";
    }
    this.version = version;
    if (admittedThrough >= this.token || contains(holes, this.token)) this.passed = true;
    if (this.passed) return "passed";
    // Pointers fall only over numbers that nobody holds, so never while this token waits behind them.
    this.admittedThrough = Math.max(this.admittedThrough, admittedThrough);
    this.#dig([...this.#holes, ...holes]);
    return this.position === undefined ? "gap" : "position";
  }

  /** Takes a board that lists all holes. The token must have entered before it. */
  wholeBoard(version: number, admittedThrough: number, holes: Holes): "stale" | "gap" | "position" | "passed" {
    if (this.version !== undefined && version <= this.version) return "stale";
    this.sync(version, admittedThrough, holes);
    this.passed ||= contains(holes, this.token);
    if (this.passed) return "passed";
    return this.position === undefined ? "gap" : "position";
  }

  #dig(holes: Holes): void {
    this.#holes = union(holes, this.admittedThrough, this.token);
    this.#count = this.#holes.reduce((sum, [first, last]) => sum + last - first + 1, 0);
    if (this.#holes.length > RANGES_MAX) this.forget();
  }
}

function contains(holes: Holes, token: number): boolean {
  return holes.some(([first, last]) => first <= token && token <= last);
}
