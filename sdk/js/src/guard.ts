/**
 * A concurrency guard over a line: at most the line's `seats` handlers run at once, over all hosts.
 *
 * Each caller is one visit to the line, under a key of its own:
 *
 *     enter ─► wait ─► claim ─► hold (renew, renew, …) ─► complete
 *       └────────┴───────┴─ the caller is gone, or nothing comes of it ─► leave
 *
 * The visit goes on by itself, so the caller can go at any moment, and nothing is left behind.
 */

import { now, randomHex, sleep } from "./connection.js";
import { badArgument, badReply, NowservingError } from "./errors.js";
import { GuardHealth, isAway, isUnanswered, untilProbe } from "./health.js";
import type { Lease } from "./lease.js";
import { claimed as newLease, renewed as renewedLease } from "./lease.js";
import type { Line } from "./line.js";
import { bytesOf } from "./subjects.js";
import type { Info, Status } from "./types.js";

/** After an unanswered call the next one comes after this long, up to twice of it. */
const RETRY_DELAY_MS = 250;
/** A seat or a place in line is given back for at least this long, if the cluster is there and does not take it. */
const GIVE_BACK_MS = 60_000;
const GIVE_BACK_MAX_MS = 86_400_000;
/**
 * An `enter` without an answer takes effect within its attempt's timeout (2 s) + 1 s + 5 s of tolerance for clocks after it
 * was sent, or never. A second is added for an attempt that was sent late.
 */
const UNKNOWN_FOR_MS = 9_000;
/** A read that decides whether the cluster is away may take this long. */
const ASK_FOR_MS = 1_000;

/** Refusals that say that there is nothing to give back. */
const FREE_ALREADY = new Set([
  "token_gone",
  "epoch_stale",
  "ticket_invalid",
  "token_not_found",
  "line_not_found",
  "line_closed",
]);

/** The options of a guard. */
export interface GuardOptions {
  /**
   * What happens to callers while the cluster does not answer. `allow` (the default): they run, without a limit. `deny`:
   * they are refused with `unavailable`, and slots that are held are lost when their time is up by this process's clock.
   */
  onUnavailable?: "allow" | "deny";
  /** How long the cluster may take to answer a call; default 5,000. */
  patienceMs?: number;
  /** How long a caller waits at most, from its call to its slot; default: no limit. */
  maxWaitMs?: number;
  /** How many visits of this process may be under way, those included that are being given back; default 16,384. */
  inFlightMax?: number;
}

/** What one caller asks for. */
export interface Ask {
  /** Waits in this lane, not in the line's default one. */
  lane?: string;
  /** Begins the key under which operators see the visit, 1 to 64 bytes; default `guard`. */
  label?: string;
  /** In place of the guard's. */
  maxWaitMs?: number;
  /** Aborts when the caller goes: it leaves the line. */
  signal?: AbortSignal;
}

/** What is asked of a line. */
type Calls = Pick<
  Line,
  "name" | "info" | "enter" | "track" | "claim" | "renew" | "complete" | "leave" | "find" | "withDeadline"
>;

/** The right to run one handler; see `guard.acquire`. */
export class Slot {
  /** `seat`: one of the line's seats. `allowed`: the cluster was away, and `onUnavailable` is `allow`. */
  readonly kind: "seat" | "allowed";
  /** From the call to the slot. */
  readonly waitedMs: number;
  /** The fencing number of a seat: it grows with every slot that the line gives. Undefined if the cluster was away. */
  readonly epoch: number | undefined;
  /** The number in the line's lane. */
  readonly token: number | undefined;
  readonly lane: string | undefined;
  readonly #lost = new AbortController();
  readonly #end: () => void;
  readonly #givenBack: Promise<void>;

  /** Use `guard.acquire`. */
  constructor(
    kind: "seat" | "allowed",
    waitedMs: number,
    status: Status | undefined,
    hold: (lose: () => void) => { end: () => void; givenBack: Promise<void> },
  ) {
    this.kind = kind;
    this.waitedMs = waitedMs;
    this.epoch = status?.epoch;
    this.token = status?.token;
    this.lane = status?.lane;
    const lost = new NowservingError("seat_lost", "seat_lost", "the seat was lost while it was held");
    const { end, givenBack } = hold(() => this.#lost.abort(lost));
    this.#end = end;
    this.#givenBack = givenBack;
  }

  /**
   * Aborts when the seat is lost: an operator kicked it, `checkout_max_ms` is over, or it could not be renewed in time. The
   * handler should stop then.
   */
  get signal(): AbortSignal {
    return this.#lost.signal;
  }

  /** Gives the slot back. The promise ends when the cluster knows, which can take as long as the cluster is away. */
  release(): Promise<void> {
    this.#end();
    return this.#givenBack;
  }

  /** `await using slot = await guard.acquire();` */
  [Symbol.asyncDispose](): Promise<void> {
    return this.release();
  }
}

/**
 * At most a line's `seats` handlers at once:
 *
 *     const guard = new Guard(client.line("reports"));
 *     const report = await guard.run(({ signal }) => makeReport(signal));
 *
 * The line is made by an operator, with `release_on_claim` off (the default). A slot is given back also by a process that
 * dies: its seats are free again after the line's `checkout_timeout_ms`.
 */
export class Guard {
  readonly #line: Calls;
  readonly #options: Required<Omit<GuardOptions, "maxWaitMs">> & { maxWaitMs: number | undefined };
  readonly #health = new GuardHealth();
  readonly #visits = new Set<Promise<void>>();
  #draining = false;

  constructor(line: Calls, options: GuardOptions = {}) {
    const { onUnavailable = "allow", patienceMs = 5_000, maxWaitMs, inFlightMax = 16_384 } = options;
    this.#line = line.withDeadline(patienceMs);
    this.#options = { onUnavailable, patienceMs, maxWaitMs, inFlightMax };
  }

  /** Whether the cluster is away, so that `onUnavailable` decides. */
  get isAway(): boolean {
    return this.#health.isAway;
  }

  /**
   * Whether the line is there and fits a guard: for a service's start. Throws `line_not_found`; `bad_argument` if
   * `release_on_claim` is set, which gives a seat back at once; `unavailable` within `patienceMs`.
   */
  async check(): Promise<Info> {
    const info = await this.#line.info();
    if (info.settings.release_on_claim) throw releasedOnClaim(this.#line.name);
    return info;
  }

  /**
   * Runs `work` with a slot, and gives the slot back however the work ends. If the seat is lost first, `signal` of the slot
   * aborts, and this throws `seat_lost` without waiting for the work. Throws as `acquire`.
   */
  async run<T>(work: (slot: Slot) => T | Promise<T>, ask: Ask = {}): Promise<T> {
    const slot = await this.acquire(ask);
    let lose = () => {};
    const lost = new Promise<never>((_, reject) => {
      lose = () => reject(slot.signal.reason);
      slot.signal.addEventListener("abort", lose);
    });
    lost.catch(() => {});
    try {
      if (slot.signal.aborted) throw slot.signal.reason;
      return await Promise.race([Promise.resolve(slot).then(work), lost]);
    } finally {
      slot.signal.removeEventListener("abort", lose);
      // So a program that ends now leaves no seat behind. While the cluster is away, the visit goes on by itself.
      const late = new AbortController();
      await Promise.race([slot.release(), sleep(this.#options.patienceMs, late.signal)]);
      late.abort();
    }
  }

  /**
   * Waits for a slot, in the order of the line. Give it back by `release`. Throws `no_slot`, whose `code` says why, the
   * reason of `ask.signal`, and what is wrong with the set-up: `line_not_found`, `forbidden`.
   */
  async acquire(ask: Ask = {}): Promise<Slot> {
    const label = ask.label ?? "guard";
    if (bytesOf(label) < 1 || bytesOf(label) > 64) throw badArgument("label: 1 to 64 bytes");
    const begin = now();
    if (!this.#health.isAway) {
      const slot = await this.#visit(ask, label, begin);
      if (slot) return slot;
    }
    if (this.#options.onUnavailable === "deny") throw noSlot("unavailable", "the cluster that admits does not answer");
    this.#takesCallers();
    return new Slot("allowed", now() - begin, undefined, () => {
      let end = () => {};
      const givenBack = new Promise<void>((resolve) => (end = resolve));
      this.#keep(givenBack);
      return { end, givenBack };
    });
  }

  /**
   * Ends when all slots are given back and the cluster knows: for a service that stops. From the call on, `acquire` is
   * refused with `busy`. While the cluster is away this does not end: limit it by a time.
   */
  async drained(): Promise<void> {
    this.#draining = true;
    while (this.#visits.size > 0) await Promise.all(this.#visits);
  }

  // ---- one caller

  #takesCallers(): void {
    if (this.#draining) throw noSlot("busy", "the guard is draining");
  }

  #keep(visit: Promise<void>): void {
    this.#visits.add(visit);
    void visit.finally(() => this.#visits.delete(visit));
  }

  /** One visit to the line. Undefined if the cluster does not answer. */
  #visit(ask: Ask, label: string, begin: number): Promise<Slot | undefined> {
    ask.signal?.throwIfAborted();
    this.#takesCallers();
    if (this.#visits.size >= this.#options.inFlightMax) throw noSlot("busy", "too many are under way in this process");
    return new Promise((resolve, reject) => {
      const gone = new AbortController();
      const stop = (reason: unknown) => {
        gone.abort();
        settle(() => reject(reason));
      };
      const maxWaitMs = ask.maxWaitMs ?? this.#options.maxWaitMs;
      const timer =
        maxWaitMs === undefined ? undefined : setTimeout(() => stop(tooLate(begin)), Math.min(maxWaitMs, 0x7fff_ffff));
      const aborted = () => stop(ask.signal?.reason);
      ask.signal?.addEventListener("abort", aborted);
      let isSettled = false;
      /** Returns whether the caller is still there. */
      const settle = (how: () => void): boolean => {
        if (isSettled) return false;
        isSettled = true;
        clearTimeout(timer);
        ask.signal?.removeEventListener("abort", aborted);
        how();
        return true;
      };
      const caller: Caller = {
        gone: gone.signal,
        take: (slot) => settle(() => resolve(slot)),
        fail: (error) => settle(() => (isAway(error) ? resolve(undefined) : reject(refusal(error)))),
      };
      this.#keep(this.#carryOut(caller, ask.lane, `${label}-${randomHex(16)}`, begin));
    });
  }

  async #carryOut(caller: Caller, lane: string | undefined, key: string, begin: number): Promise<void> {
    let place: { ticket: string };
    let entered: Status;
    try {
      // Not broken off when the caller goes: its outcome decides what is to be undone.
      entered = await this.#noted(this.#line.enter(key, lane === undefined ? {} : { lane }));
      if (entered.ticket === undefined) throw badReply("the answer to enter has no ticket");
      place = { ticket: entered.ticket };
    } catch (error) {
      caller.fail(error);
      if (mayBeInLine(error)) await this.#leaveByKey(key);
      return;
    }
    let held: { claimed: Status; lease: Lease };
    try {
      held = await this.#seat(caller, place, entered, begin);
    } catch (error) {
      caller.fail(error);
      const isGone = error instanceof NowservingError && error.kind === "no_slot" && error.code === "removed";
      if (!isGone) await this.#leave(place.ticket);
      return;
    }
    await this.#hold(caller, place.ticket, held.claimed, held.lease, begin);
  }

  /** Waits for the turn, and claims. */
  async #seat(
    caller: Caller,
    place: { ticket: string },
    entered: Status,
    begin: number,
  ): Promise<{ claimed: Status; lease: Lease }> {
    if (entered.state === "waiting") await this.#turn(caller, place, begin);
    for (;;) {
      if (caller.gone.aborted) throw callerGone();
      const sent = now();
      let claimed: Status;
      try {
        claimed = await this.#noted(this.#line.claim(place.ticket));
      } catch (error) {
        if (!(error instanceof NowservingError && error.kind === "refused" && error.code === "not_admitted")) throw error;
        // An earlier leader said that it is admitted, and was not to be trusted: it waits on.
        await pause();
        await this.#turn(caller, place, begin);
        continue;
      }
      place.ticket = claimed.ticket ?? place.ticket;
      if (claimed.epoch === undefined) throw badReply("the answer to claim has no epoch");
      if (claimed.expires_in_ms === undefined) throw releasedOnClaim(this.#line.name);
      return { claimed, lease: newLease(sent, claimed.expires_in_ms) };
    }
  }

  /** Waits until the token waits no longer. A poll without an answer is repeated while others are answered. */
  async #turn(caller: Caller, place: { ticket: string }, begin: number): Promise<void> {
    const tracker = this.#line.track(place.ticket, { signal: caller.gone });
    try {
      for (;;) {
        const sent = now();
        let status: Status | undefined;
        try {
          status = await tracker.step();
        } catch (error) {
          if (!isUnanswered(error)) throw error;
          if (caller.gone.aborted) throw callerGone();
          if (this.#health.isAway || !(await this.#answers())) {
            this.#noteFailed(Math.max(sent, now() - this.#options.patienceMs), error);
            throw error;
          }
          await pause();
          continue;
        }
        place.ticket = tracker.ticket;
        if (caller.gone.aborted) throw callerGone();
        if (!status) throw removed(undefined);
        if (status.state === "gone") throw status.reason === "wait_expired" ? tooLate(begin) : removed(status.reason);
        if (status.state !== "waiting") return;
      }
    } finally {
      await tracker.return();
    }
  }

  /** Hands the slot out, renews the claim until the slot is given back, and tells the cluster. */
  async #hold(caller: Caller, ticket: string, claimed: Status, lease: Lease, begin: number): Promise<void> {
    const epoch = claimed.epoch ?? 0;
    const ended = new AbortController();
    let lose = () => {};
    let givenBack = () => {};
    const slot = new Slot("seat", now() - begin, claimed, (tell) => {
      lose = tell;
      return { end: () => ended.abort(), givenBack: new Promise<void>((resolve) => (givenBack = resolve)) };
    });
    if (!caller.take(slot)) ended.abort();
    await this.#renew(ticket, epoch, lease, ended.signal);
    if (!ended.signal.aborted) {
      lose();
      await aborted(ended.signal);
    }
    const leastMs = Math.max(GIVE_BACK_MS, Math.min(lease.full, GIVE_BACK_MAX_MS));
    await this.#giveBack(leastMs, () => this.#noted(this.#line.complete(ticket, epoch)));
    givenBack();
  }

  /** Renews until the slot is given back, the cluster refuses it, or its time is up. */
  async #renew(ticket: string, epoch: number, first: Lease, ended: AbortSignal): Promise<void> {
    let lease = first;
    let renewAt = lease.renewAt;
    while (!ended.aborted) {
      // With `deny` no handler runs without a seat, so it ends with its claim. Else only an answer that named the end for
      // good counts: an outage must not cost a service its handlers.
      const byClock = this.#options.onUnavailable === "deny" || lease.renewAt === undefined;
      const end = byClock ? lease.expiresAt : Infinity;
      if (renewAt === undefined || renewAt >= end) {
        await sleep(end - now(), ended);
        return;
      }
      await sleep(renewAt - now(), ended);
      if (ended.aborted) return;
      const sent = now();
      const done = new AbortController();
      const renewal = this.#noted(this.#line.renew(ticket, epoch)).then(
        (status) => ({ status }),
        (error: unknown) => ({ error }),
      );
      const late = sleep(end - sent, AbortSignal.any([ended, done.signal])).then(() => undefined);
      const answer = await Promise.race([renewal, late]);
      done.abort();
      // Its time is up, or it is given back.
      if (!answer) return;
      if ("error" in answer && answer.error instanceof NowservingError && answer.error.kind === "refused") return;
      const left = "status" in answer ? answer.status.expires_in_ms : undefined;
      if (left === undefined) {
        renewAt = now() + RETRY_DELAY_MS * (1 + Math.random());
        continue;
      }
      lease = renewedLease(lease, sent, left);
      renewAt = lease.renewAt;
    }
  }

  // ---- whether the cluster is away

  /** Makes a call that changes the line, and notes whether it is answered. */
  async #noted<T>(call: Promise<T>): Promise<T> {
    const sent = now();
    try {
      const done = await call;
      this.#health.answered();
      return done;
    } catch (error) {
      // The leader decided: it has a quorum, or had one a moment ago.
      if (error instanceof NowservingError && error.kind === "refused") this.#health.answered();
      else this.#noteFailed(sent, error);
      throw error;
    }
  }

  #noteFailed(sent: number, error: unknown): void {
    if (!isAway(error)) return;
    const verdict = this.#health.failed(sent);
    if (verdict === "ask") void this.#answers().then((answers) => answers || this.#goAway());
    else if (verdict === "away") this.#goAway();
  }

  async #answers(): Promise<boolean> {
    try {
      await this.#line.withDeadline(Math.min(ASK_FOR_MS, this.#options.patienceMs)).info();
      return true;
    } catch (error) {
      return !isAway(error);
    }
  }

  #goAway(): void {
    if (this.#health.setAway()) void this.#probe();
  }

  /** Enters the line and leaves it again, under one key: only a write shows that writes are served. */
  async #probe(): Promise<void> {
    const key = `guard-probe-${randomHex(16)}`;
    let mayBeThere = false;
    while (this.#health.isAway) {
      await sleep(untilProbe());
      if (!this.#health.isAway) break;
      try {
        const entered = await this.#line.enter(key);
        this.#health.answered();
        if (entered.ticket !== undefined) await this.#leave(entered.ticket);
      } catch (error) {
        mayBeThere ||= error instanceof NowservingError && error.mayHaveHappened;
        // Nobody can ask any more: what waits for an answer ends.
        if (isClosed(error)) return this.#health.forget();
        // Others than an unanswered call are for callers to see.
        if (!isUnanswered(error)) this.#health.answered();
      }
    }
    if (mayBeThere) await this.#leaveByKey(key);
  }

  // ---- giving back

  async #leave(ticket: string): Promise<void> {
    await this.#giveBack(GIVE_BACK_MS, () => this.#noted(this.#line.leave(ticket)));
  }

  /** It may have entered, or may still enter. */
  async #leaveByKey(key: string): Promise<void> {
    await sleep(UNKNOWN_FOR_MS);
    const found = await this.#giveBack(GIVE_BACK_MS, () => this.#line.find(key));
    if (found?.ticket !== undefined) await this.#leave(found.ticket);
  }

  /** Repeats the call until the cluster answers: while it is away, and then for `leastMs`. */
  async #giveBack(leastMs: number, call: () => Promise<Status>): Promise<Status | undefined> {
    let givesUp = now() + leastMs;
    for (;;) {
      try {
        return await call();
      } catch (error) {
        if (error instanceof NowservingError && FREE_ALREADY.has(error.code)) return undefined;
        // A seat or a place in line has to time out.
        if (isClosed(error) || !isUnanswered(error) || (!this.#health.isAway && now() >= givesUp)) return undefined;
      }
      if (this.#health.isAway) {
        await this.#health.back();
        givesUp = now() + leastMs;
      }
      await pause();
    }
  }
}

interface Caller {
  /** Aborts when it goes. */
  gone: AbortSignal;
  /** Returns whether it is still there. */
  take: (slot: Slot) => boolean;
  fail: (error: unknown) => boolean;
}

function isClosed(error: unknown): boolean {
  return error instanceof NowservingError && error.kind === "connection";
}

function pause(): Promise<void> {
  return sleep(RETRY_DELAY_MS * (1 + Math.random()));
}

function aborted(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve();
    else signal.addEventListener("abort", () => resolve(), { once: true });
  });
}

/** Whether the caller of a failed `enter` may be in line, or come into it later. */
function mayBeInLine(error: unknown): boolean {
  if (!(error instanceof NowservingError)) return true;
  if (error.kind === "refused" || error.kind === "unavailable") return error.mayHaveHappened;
  return error.kind !== "bad_argument";
}

/** The refusal for an error that is about the request and not about the cluster. */
function refusal(error: unknown): unknown {
  if (!(error instanceof NowservingError) || error.kind === "no_slot") return error;
  const { code, message, retryAfterMs } = error;
  if (code === "line_full" || code === "sold_out") return noSlot("line_full", message, { retryAfterMs });
  if (code === "line_closed") return noSlot("line_closed", message);
  if (code === "token_gone") return removed(error.reason);
  if (error.isTransient && error.lastCode === "overloaded") return noSlot("overloaded", message, { retryAfterMs });
  return error;
}

function noSlot(code: string, message: string, more: { retryAfterMs?: number | undefined; reason?: string } = {}) {
  return new NowservingError("no_slot", code, message, more);
}

function removed(reason: string | undefined): NowservingError {
  const why = reason ?? "forgotten";
  return noSlot("removed", `removed from the line (${why})`, { reason: why });
}

function tooLate(begin: number): NowservingError {
  return noSlot("waited_too_long", `waited too long (${Math.round(now() - begin)} ms)`);
}

function callerGone(): NowservingError {
  return noSlot("waited_too_long", "the caller is gone");
}

function releasedOnClaim(line: string): NowservingError {
  return badArgument(`line ${line} has release_on_claim set: a guard needs it off`);
}
