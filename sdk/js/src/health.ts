/**
 * Whether the cluster answers, as far as the calls of one guard or one limiter tell. No I/O.
 *
 * One call without an answer does not make the cluster away: its reply may have been lost with a leader. It is away when a
 * call that began after such a doubt fails too, and none was answered since.
 */

import { now } from "./connection.js";
import { NowservingError } from "./errors.js";

/** While the cluster is away it is asked this often whether it is back, and up to half as long later. */
export const PROBE_EVERY_MS = 500;
/** A longer patience does not keep others from asking. */
const PATIENCE_MAX_MS = 60_000;

export function untilProbe(): number {
  return PROBE_EVERY_MS * (1 + Math.random() / 2);
}

/** Whether the cluster may answer the same call later. */
export function isUnanswered(error: unknown): error is NowservingError {
  return error instanceof NowservingError && (error.isTransient || error.kind === "connection");
}

/** A busy cluster is not away. */
export function isAway(error: unknown): error is NowservingError {
  return isUnanswered(error) && error.lastCode !== "overloaded";
}

/** Of a guard: only a write that is answered shows that writes are served. */
export class GuardHealth {
  #answered = -Infinity;
  #doubted: number | undefined;
  #back: { promise: Promise<void>; resolve: () => void } | undefined;

  get isAway(): boolean {
    return this.#back !== undefined;
  }

  /** A write was answered. */
  answered(): void {
    this.#answered = now();
    this.#doubted = undefined;
    this.forget();
  }

  /** A call that began at `sent` was not answered. */
  failed(sent: number): "nothing" | "ask" | "away" {
    if (this.#answered >= sent) return "nothing";
    if (this.#doubted === undefined) {
      this.#doubted = now();
      return "ask";
    }
    // One that was sent before the doubt failed for the same reason, perhaps the same lost leader.
    return sent >= this.#doubted ? "away" : "nothing";
  }

  /** The cluster is away, unless a write was answered meanwhile. Returns whether that is new. */
  setAway(): boolean {
    if (this.#doubted === undefined || this.#back) return false;
    let resolve = () => {};
    const promise = new Promise<void>((done) => (resolve = done));
    this.#back = { promise, resolve };
    return true;
  }

  /** Nobody asks any more whether the cluster is back. */
  forget(): void {
    this.#back?.resolve();
    this.#back = undefined;
  }

  /** Ends when the cluster is not away. */
  async back(): Promise<void> {
    await this.#back?.promise;
  }
}

/** Of a limiter: while the cluster is away, one call at a time still asks it. */
export class LimiterHealth {
  #answered = -Infinity;
  #doubted: number | undefined;
  #probeAt: number | undefined;

  get isAway(): boolean {
    return this.#probeAt !== undefined;
  }

  /** Whether a call that begins now asks the cluster. */
  mayAsk(patienceMs: number): boolean {
    if (this.#probeAt === undefined) return true;
    if (this.#probeAt > now()) return false;
    // Not before this one has ended, whatever comes of it. If it fails, `failed` says when.
    this.#probeAt = now() + Math.min(patienceMs, PATIENCE_MAX_MS) + untilProbe();
    return true;
  }

  /** A call was answered. */
  answered(): void {
    this.#answered = now();
    this.#doubted = undefined;
    this.#probeAt = undefined;
  }

  /** A call that began at `sent` was not answered. */
  failed(sent: number): void {
    if (this.#answered >= sent) return;
    if (this.#doubted === undefined) this.#doubted = now();
    else if (sent >= this.#doubted) this.#probeAt = now() + untilProbe();
  }
}
