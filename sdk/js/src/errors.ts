/** Why a call failed, for programs to decide by. */
export type Kind =
  /** The cluster refused the request and would refuse it again: `code` says why. */
  | "refused"
  /** No node could serve the request by the deadline, and nothing happened. */
  | "unavailable"
  /**
   * The deadline passed, and the outcome of an attempt is not known. It has happened already, or happens within a second,
   * or never. Repeat an `enter` with the same key, or an operation on a ticket, to find out.
   */
  | "outcome_unknown"
  /** The user of the NATS connection lacks the right that the message names. */
  | "forbidden"
  /** The NATS connection was closed. */
  | "connection"
  /** The reply cannot be read by this version of the SDK. */
  | "bad_reply"
  /** An argument was refused before anything was sent. */
  | "bad_argument"
  /**
   * A guard gives no slot. `code` is `line_full` (HTTP 429), `waited_too_long` (504), or one of `line_closed`, `removed`,
   * `unavailable`, `overloaded`, `busy` (503).
   */
  | "no_slot"
  /** The seat of a slot was lost while its work ran: another handler may run in its place. */
  | "seat_lost";

/** The error of a call. */
export class NowservingError extends Error {
  override readonly name = "NowservingError";
  /** For programs to decide by. */
  readonly kind: Kind;
  /** A code of the contract (`docs/protocol/errors.md`), also for errors that no node has sent. */
  readonly code: string;
  /** After how long the cluster suggests another attempt. */
  readonly retryAfterMs: number | undefined;
  /** Of `token_gone` and `removed`: why the token is gone. */
  readonly reason: string | undefined;
  /** Whether the operation may have had its effect in spite of the error. */
  readonly mayHaveHappened: boolean;
  /** The code of the cluster's last answer, also of one after which the call was repeated until its deadline. */
  readonly lastCode: string | undefined;

  constructor(
    kind: Kind,
    code: string,
    message: string,
    more: {
      retryAfterMs?: number | undefined;
      reason?: string | undefined;
      mayHaveHappened?: boolean;
      lastCode?: string | undefined;
      cause?: unknown;
    } = {},
  ) {
    super(message, more.cause === undefined ? undefined : { cause: more.cause });
    this.kind = kind;
    this.code = code;
    this.retryAfterMs = more.retryAfterMs;
    this.reason = more.reason;
    this.mayHaveHappened = more.mayHaveHappened ?? false;
    this.lastCode = more.lastCode;
  }

  /** Whether the same call may succeed later without a change by anybody. */
  get isTransient(): boolean {
    return this.kind === "unavailable" || this.kind === "outcome_unknown";
  }
}

export function badArgument(message: string): NowservingError {
  return new NowservingError("bad_argument", "bad_request", message);
}

export function badReply(what: string): NowservingError {
  return new NowservingError("bad_reply", "outcome_unknown", `the answer cannot be read: ${what}`);
}

export function closed(): NowservingError {
  return new NowservingError("connection", "unavailable", "the NATS connection is closed");
}
