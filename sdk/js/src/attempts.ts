/** What follows a failed attempt: the next subject, the pause before it, or the end of the call. No I/O. */

import { NowservingError } from "./errors.js";

/**
 * The longest that an attempt waits for its answer: a little over the timeout in the header, so that the cluster's own
 * `unavailable` or `outcome_unknown` still arrives.
 */
export const ATTEMPT_MAX_MS = 2_200;
/** The least time for an attempt after the first: a shorter one only makes the outcome unknown. */
const ATTEMPT_MIN_MS = 10;
/**
 * How long a write is repeated once one of its attempts may have had its effect. The cluster recognises a copy by its
 * request id for two minutes.
 */
export const REPEAT_MAX_MS = 110_000;

/** Codes after which another attempt can succeed. */
const REPEATED = new Set(["unavailable", "not_leader", "overloaded", "outcome_unknown"]);

/** The error in a reply. */
export interface ApiError {
  code: string;
  message: string;
  retry_after_ms?: number;
  reason?: string;
}

/** How one attempt failed. */
export type Failure =
  /** NATS reports that the subject has no subscribers: nothing happened. */
  | { type: "no_responders" }
  /** Sent, and no reply in time. */
  | { type: "no_answer" }
  /** Not sent: the connection is down at the moment. */
  | { type: "disconnected" }
  /** The cluster answered with an error. */
  | { type: "answered"; error: ApiError }
  /** A further attempt cannot succeed. */
  | { type: "fatal"; error: NowservingError };

const TEXTS = {
  no_responders: "no node listens: none runs, or the nodes have another prefix",
  no_answer: "no answer in time",
  disconnected: "no connection to NATS",
};

/** The attempts of one call. */
export class Attempts {
  route: "shard" | "plain";
  /** An attempt may have had its effect. */
  uncertain = false;
  #count = 0;
  #delayMs = 20;
  readonly #isWrite: boolean;
  readonly #shardKnown: boolean;

  constructor(isWrite: boolean, shardKnown: boolean) {
    this.#isWrite = isWrite;
    this.#shardKnown = shardKnown;
    this.route = shardKnown ? "shard" : "plain";
  }

  /**
   * The pause before the next attempt, which goes to `route`. Throws the error that ends the call.
   * `leftMs`: the time until the call's deadline.
   */
  after(failure: Failure, leftMs: number): number {
    this.#count += 1;
    if (failure.type === "fatal") {
      const { kind, code, message } = failure.error;
      throw new NowservingError(kind, code, message, { mayHaveHappened: this.uncertain });
    }
    if (failure.type === "answered" && !REPEATED.has(failure.error.code)) {
      const { code, message, retry_after_ms: retryAfterMs, reason } = failure.error;
      const more = { retryAfterMs, reason, lastCode: code, mayHaveHappened: this.uncertain };
      throw new NowservingError("refused", code, message, more);
    }
    if (this.#isWrite && isUncertain(failure)) this.uncertain = true;
    const pause = this.#pause(failure);
    if (pause + ATTEMPT_MIN_MS >= leftMs) throw this.#outOfTime(failure);
    this.route = this.#otherWay(failure);
    return pause;
  }

  #outOfTime(failure: Exclude<Failure, { type: "fatal" }>): NowservingError {
    const kind = this.uncertain ? "outcome_unknown" : "unavailable";
    const answer = failure.type === "answered" ? failure.error : undefined;
    let text = answer ? `${answer.code}: ${answer.message}` : TEXTS[failure.type as keyof typeof TEXTS];
    if (answer?.code === kind) text = answer.message;
    // It may say of its own attempt that nothing happened.
    else if (answer && this.uncertain) text = `an attempt got no answer; the last one: ${text}`;
    return new NowservingError(kind, kind, `${text} (given up after ${this.#count} attempts)`, {
      retryAfterMs: answer?.retry_after_ms,
      lastCode: answer?.code,
      mayHaveHappened: this.uncertain,
    });
  }

  #pause(failure: Failure): number {
    // There is no leader. Any node can be asked at once, and waits for the new leader.
    if (failure.type === "no_responders" && this.route === "shard") return 0;
    // 20 ms doubling to 250 ms, each with up to as much again at random.
    const pause = this.#delayMs * (1 + Math.random());
    this.#delayMs = Math.min(this.#delayMs * 2, 250);
    const retryAfterMs = failure.type === "answered" ? failure.error.retry_after_ms : undefined;
    // Clients that were refused at one moment get the same time: their return is spread by a quarter.
    return retryAfterMs === undefined ? pause : Math.max(pause, retryAfterMs * (1 + Math.random() / 4));
  }

  #otherWay(failure: Failure): "shard" | "plain" {
    if (this.route === "plain") return this.#shardKnown ? "shard" : "plain";
    // A busy leader is reachable: a detour over another node would only add load.
    return failure.type === "answered" && failure.error.code === "overloaded" ? "shard" : "plain";
  }
}

function isUncertain(failure: Failure): boolean {
  return failure.type === "no_answer" || (failure.type === "answered" && failure.error.code === "outcome_unknown");
}
