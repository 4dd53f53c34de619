/**
 * What calls answer, and what events say, with the names of the contract (`docs/protocol/users.md`, `events.md`,
 * `limits.md`). A field that a reply does not have is missing.
 */

import { badReply } from "./errors.js";

export type State = "waiting" | "admitted" | "in_checkout" | "gone";

/** Ranges of numbers: first and last. */
export type Holes = ReadonlyArray<readonly [number, number]>;

/** Why a line does not admit its next token now. */
export interface HeldBack {
  by: string;
  phase?: string;
  next_at_ms?: number;
  next_in_ms?: number;
}

/** A token as it is now. */
export interface Status {
  line: string;
  incarnation: number;
  lane: string;
  token: number;
  state: State;
  version: number;
  /** While waiting: 1 + how many tokens wait before it in its lane. */
  position?: number;
  /** `position` is the line's `position_cap`, and the true position larger. */
  position_capped?: boolean;
  /** While waiting: `position - 1`. */
  ahead?: number;
  /** While waiting: 1 + how many tokens of all lanes would be admitted before it, as things are. */
  turn?: number;
  /** While waiting: the median of the time until it is admitted; null while that is not known. */
  eta_ms?: number | null;
  /** Nine tokens in ten wait no longer. */
  eta_p90_ms?: number | null;
  eta_from?: string;
  phase?: string;
  held_back_by?: HeldBack;
  call_ahead?: boolean;
  admitted_through: number;
  /** After how long to ask again. `line.track` does. */
  poll_after_ms: number;
  at_ms: number;
  /** Of the claim: a number that only grows in the line. */
  epoch?: number;
  expires_at_ms?: number;
  /** While it holds a seat: in how long it loses the seat. */
  expires_in_ms?: number;
  units?: number;
  entered_at_ms?: number;
  /** Once gone: why. */
  reason?: string;
  /** After `enter` and `find`, and whenever the token was moved: its ticket, which replaces the former one. */
  ticket?: string;
  /** The signed pass, if it was asked for. */
  pass?: string;
  pass_expires_in_ms?: number;
  holes?: Holes;
}

/** A lane of a board, with its four pointers. */
export interface Lane {
  lane: string;
  next_token: number;
  done_through: number;
  admitted_through: number;
  accepts_through: number;
  waiting: number;
  /** In an event: the numbers that stopped waiting without being admitted, since `prev_version`. */
  holes?: Holes;
}

/** A line as everybody may see it; an event also has `prev_version`. */
export interface Board {
  line: string;
  incarnation: number;
  version: number;
  at_ms: number;
  phase: string;
  /** Until a draw is done nobody has a place. */
  undrawn?: boolean;
  seats: number;
  admitted: number;
  in_checkout: number;
  lanes: Lane[];
  prev_version?: number;
  /** `holes` are all holes between the pointers. */
  whole?: boolean;
}

/** A board with what users may see of the settings. */
export interface Info extends Board {
  shard: number;
  /** The node that leads the line's shard. */
  leader: number | null;
  held_back_by: HeldBack;
  draw?: Record<string, unknown>;
  newcomer_eta_ms: number | null;
  newcomer_eta_from?: string;
  settings: Record<string, unknown> & { release_on_claim?: boolean };
}

/** What became of tokens that were marked as seen. */
export interface Seen {
  line: string;
  incarnation: number;
  version: number;
  at_ms: number;
  /** How many of them are live. */
  seen: number;
  /** The places in `tickets`, from 0, of tokens that are gone. */
  gone: number[];
  /** The places of texts that are no valid ticket of this line. */
  invalid: number[];
  /** Mark them again after this long. */
  poll_after_ms: number;
}

/** Something happened to a token. */
export interface TokenEvent {
  line: string;
  incarnation: number;
  version: number;
  prev_version: number;
  at_ms: number;
  event: string;
  lane: string;
  token: number;
  position?: number;
  reason?: string;
  epoch?: number;
  by?: string;
  to_lane?: string;
  to_token?: number;
  units?: number;
}

/** Something happened to a line: `phase`, `room`, `quota_renewed`, … */
export interface LineEvent {
  line: string;
  incarnation: number;
  version: number;
  prev_version: number;
  at_ms: number;
  event: string;
}

/** What the rule of one descriptor says. */
export interface DescriptorReply {
  allowed: boolean;
  limit?: number | null;
  unit?: string;
  burst?: number;
  name?: string;
  remaining?: number | null;
  reset_ms?: number | null;
  retry_after_ms?: number | null;
  delay_ms?: number;
  /** No rule limits it. */
  unmatched?: boolean;
  unlimited?: boolean;
  replaced?: boolean;
  shadow?: boolean;
  quota?: boolean;
  /** There was no room for a counter. */
  untracked?: boolean;
}

/** Whether a request may pass. */
export interface CheckReply {
  allowed: boolean;
  limit?: number | null;
  remaining?: number | null;
  reset_ms?: number | null;
  /** After how long the same request passes if nobody else comes; null if it passes now, or never will. */
  retry_after_ms?: number | null;
  /** How long to wait before going on, if a leaking bucket says so. */
  delay_ms?: number;
  /** The domain has no rules. */
  unmatched?: boolean;
  /** The cluster did not answer: `onUnavailable` has decided. */
  without_cluster?: boolean;
  descriptors: DescriptorReply[];
}

type Fields = Record<string, unknown>;

function isObject(value: unknown): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Whether these fields are there, each of its type. */
function has(value: unknown, fields: Record<string, "string" | "number" | "boolean">): value is Fields {
  return isObject(value) && Object.entries(fields).every(([name, type]) => typeof value[name] === type);
}

function areHoles(value: unknown): boolean {
  const isRange = (range: unknown) =>
    Array.isArray(range) && range.length === 2 && range.every((number) => Number.isSafeInteger(number));
  return value === undefined || value === null || (Array.isArray(value) && value.every(isRange));
}

/** A status, from JSON. */
export function readStatus(value: unknown): Status {
  const fields = { line: "string", lane: "string", state: "string", token: "number", version: "number" } as const;
  if (!has(value, { ...fields, incarnation: "number" }) || !areHoles(value["holes"])) throw badReply("no status");
  const status = value as unknown as Status;
  status.admitted_through ??= 0;
  status.poll_after_ms ??= 1_000;
  return status;
}

/** A board, from JSON. */
export function readBoard(value: unknown): Board {
  const isLane = (lane: unknown) =>
    has(lane, { lane: "string", next_token: "number", admitted_through: "number", waiting: "number" }) &&
    areHoles(lane["holes"]);
  const lanes = isObject(value) ? value["lanes"] : undefined;
  if (!has(value, { line: "string", incarnation: "number", version: "number" }) || !Array.isArray(lanes)) {
    throw badReply("no board");
  }
  if (!lanes.every(isLane)) throw badReply("no lanes");
  return value as unknown as Board;
}

/** An info, from JSON. */
export function readInfo(value: unknown): Info {
  readBoard(value);
  if (!isObject(value) || !isObject(value["settings"])) throw badReply("no settings");
  return value as unknown as Info;
}

/** An answer to `seen`, from JSON. */
export function readSeen(value: unknown): Seen {
  if (!has(value, { seen: "number" })) throw badReply("no answer to seen");
  const seen = value as unknown as Seen;
  seen.gone ??= [];
  seen.invalid ??= [];
  return seen;
}

/** An event of a token, from JSON. */
export function readTokenEvent(value: unknown): TokenEvent {
  const fields = { event: "string", lane: "string", token: "number", incarnation: "number", version: "number" } as const;
  if (!has(value, fields)) throw badReply("no event of a token");
  return value as unknown as TokenEvent;
}

/** An event of a line, from JSON. */
export function readLineEvent(value: unknown): LineEvent {
  if (!has(value, { event: "string", incarnation: "number", version: "number" })) throw badReply("no event of a line");
  return value as unknown as LineEvent;
}

/** An answer to a check, from JSON. */
export function readCheck(value: unknown): CheckReply {
  if (!has(value, { allowed: "boolean" })) throw badReply("no answer to a check");
  const reply = value as unknown as CheckReply;
  reply.descriptors ??= [];
  return reply;
}
