import { isGap, RANGES_MAX, union } from "./place.js";
import type { Board, Holes, Lane, LineEvent, TokenEvent } from "./types.js";
import { readBoard, readLineEvent, readTokenEvent } from "./types.js";

/** Where a token stands, as far as events say. */
export interface Standing {
  /**
   * `position`: it waits, at `position`. `passed`: it waits no longer. `unknown`: the next whole board says, at the latest
   * a minute later.
   */
  standing: "position" | "passed" | "unknown";
  /** 1 = next. */
  position?: number;
}

class LanePlaces {
  admittedThrough = 0;
  nextToken = 0;
  holes: Array<[number, number]> = [];
  /** How many numbers the holes before the n-th have. */
  sums: number[] = [];
  /** All holes between the pointers are known. */
  whole = false;
  /** Numbers from `nextToken` on that entered, with their positions; undefined: it waits no longer. */
  newcomers = new Map<number, number | undefined>();

  take(lane: Lane, keep: boolean): void {
    this.admittedThrough = lane.admitted_through;
    this.nextToken = lane.next_token;
    // The board knows of the others.
    for (const token of this.newcomers.keys()) if (token < lane.next_token) this.newcomers.delete(token);
    const known: Holes = keep ? this.holes : [];
    this.holes = union([...known, ...(lane.holes ?? [])], lane.admitted_through, lane.next_token);
    this.sums = [];
    let count = 0;
    for (const [first, last] of this.holes) {
      this.sums.push(count);
      count += last - first + 1;
    }
    this.whole = count + lane.waiting === Math.max(0, lane.next_token - 1 - lane.admitted_through);
    if (this.holes.length > RANGES_MAX) {
      this.holes = [];
      this.sums = [];
      this.whole = false;
    }
  }

  standing(token: number): Standing {
    if (this.newcomers.has(token)) {
      const position = this.newcomers.get(token);
      return position === undefined ? { standing: "passed" } : { standing: "position", position };
    }
    if (token >= this.nextToken) return { standing: "unknown" };
    if (token <= this.admittedThrough) return { standing: "passed" };
    if (!this.whole) return { standing: "unknown" };
    const before = this.#holesBefore(token);
    if (before === undefined) return { standing: "passed" };
    return { standing: "position", position: token - this.admittedThrough - before };
  }

  /** How many numbers of holes are before it; undefined if it is in one. */
  #holesBefore(token: number): number | undefined {
    let [low, high] = [0, this.holes.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.holes[middle]![0] <= token) low = middle + 1;
      else high = middle;
    }
    const hole = this.holes[low - 1];
    if (!hole) return 0;
    return token <= hole[1] ? undefined : this.sums[low - 1]! + hole[1] - hole[0] + 1;
  }
}

/**
 * The places of all tokens of one line, computed from events alone: for a push service that may only subscribe.
 *
 * `message` takes whatever comes on `nowserving.event.<line>.>`, `standing` says where a token stands. No I/O happens
 * here: subscribe with the client of your choice. Memory grows with the holes and with the newcomers since the last board,
 * not with the tokens.
 *
 *     const places = new PlacesFromEvents();
 *     nc.subscribe("nowserving.event.shop-1.>", { callback: (_, m) => void places.message(m.subject, m.json()) });
 */
export class PlacesFromEvents {
  #incarnation = 0;
  #version = 0;
  #lanes = new Map<string, LanePlaces>();

  /** The version of the last board. */
  get version(): number {
    return this.#version;
  }

  /** Takes an event as it comes over NATS, as JSON. Returns whether it was a board that was new. */
  message(subject: string, event: unknown): boolean {
    const words = subject.split(".");
    if (words.at(-1) === "board") return this.board(readBoard(event));
    if (words.at(-1) === "line") this.line(readLineEvent(event));
    else if (words.at(-3) === "token") this.token(readTokenEvent(event));
    return false;
  }

  /** Takes a board. Returns whether it was new. */
  board(board: Board): boolean {
    if (!this.#isOf(board.incarnation) || board.version < this.#version) return false;
    if (board.version === this.#version && !board.whole) return false;
    const keep = !board.whole && !isGap(this.#version, board.prev_version ?? 0);
    this.#version = board.version;
    const old = this.#lanes;
    this.#lanes = new Map();
    if (board.undrawn) return true;
    for (const lane of board.lanes) {
      const known = old.get(lane.lane) ?? new LanePlaces();
      known.take(lane, keep);
      this.#lanes.set(lane.lane, known);
    }
    return true;
  }

  /** Takes an event of a token. */
  token(event: TokenEvent): void {
    if (!this.#isOf(event.incarnation) || event.version <= this.#version) return;
    let position: number | undefined;
    if (["entered", "position"].includes(event.event) && typeof event.position === "number") position = event.position;
    else if (!["admitted", "gone", "moved"].includes(event.event)) return;
    let lane = this.#lanes.get(event.lane);
    if (!lane) this.#lanes.set(event.lane, (lane = new LanePlaces()));
    if (event.token >= lane.nextToken) lane.newcomers.set(event.token, position);
  }

  /** Takes an event of the line. A line that was put back from a backup has other holes. */
  line(event: LineEvent): void {
    if (this.#isOf(event.incarnation) && event.event === "restored") this.#lanes.clear();
  }

  /** Where a token stands. */
  standing(lane: string, token: number): Standing {
    return this.#lanes.get(lane)?.standing(token) ?? { standing: "unknown" };
  }

  /** A later creation of the line begins with nothing; events of an earlier one are dropped. */
  #isOf(incarnation: number): boolean {
    if (incarnation > this.#incarnation) {
      this.#incarnation = incarnation;
      this.#version = 0;
      this.#lanes.clear();
    }
    return incarnation === this.#incarnation;
  }
}
