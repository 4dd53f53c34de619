/**
 * A token as a watcher knows it from statuses and boards, and when it asks again. No I/O.
 *
 * The rules are those of `docs/protocol/events.md`, "How a watcher computes its place".
 */

import { Place } from "./place.js";
import type { Board, Status } from "./types.js";

/** After a change of leader or a lost connection all watchers of a line must ask. They spread that over this long. */
const RESYNC_SPREAD_MS = 250;
/** Polls are at least this far apart, whatever `poll_after_ms` says. */
const POLL_MIN_MS = 20;
/** Replies show one deadline with differences up to this: clocks are rounded, and those of two nodes differ. */
const SAME_DEADLINE_MS = 1_000;

/** What is known of a token. */
export class View {
  /** The status that was given out last; undefined before the first one. */
  last: Status | undefined;
  /** When to ask for the next status. */
  pollAt: number;
  /** It asks before `poll_after_ms` is over. */
  asksSoon = true;
  #place = new Place(0);
  /** The last board was one before the draw. */
  #undrawn = false;

  constructor(now: number) {
    this.pollAt = now;
  }

  /** Whether the next status must list the holes. */
  get wantsHoles(): boolean {
    return this.#place.version === undefined;
  }

  /** Takes a status. Returns it if its holder must see it. */
  status(reply: Status, now: number): Status | undefined {
    const { holes, ...status } = reply;
    this.pollAt = now + Math.max(status.poll_after_ms, POLL_MIN_MS);
    this.asksSoon = false;
    const last = this.last;
    const moved = last !== undefined && (last.lane !== status.lane || last.token !== status.token);
    const changed = last === undefined || moved || hasChanged(last, status);
    if (status.state !== "waiting") {
      // That is so whatever the version: a token never waits again.
      this.last = status;
      return changed ? status : undefined;
    }
    // A board has overtaken it, or a leader that does not know yet that it was replaced has sent it.
    const stale = last !== undefined && last.version > status.version;
    if (stale && moved) return undefined;
    if (last === undefined || moved) this.#place = new Place(status.token);
    if (holes) this.#place.sync(status.version, status.admitted_through, holes);
    // The next status lists the holes of the new lane.
    else if (moved) this.#pollSoon(now);
    if (stale) return undefined;
    this.last = status;
    return changed ? status : undefined;
  }

  /** Boards may have been missed. */
  resync(now: number): void {
    this.#place.forget();
    this.#pollSoon(now);
  }

  /** Takes a board. Returns the status that follows from it if its holder must see it. */
  board(board: Board, now: number): Status | undefined {
    const last = this.last;
    if (last?.state !== "waiting") return undefined;
    if (board.incarnation !== last.incarnation) {
      this.resync(now);
      return undefined;
    }
    const wasUndrawn = this.#undrawn;
    this.#undrawn = board.undrawn ?? false;
    if (this.#undrawn) {
      this.#place.forget();
      if (last.position === undefined) return undefined;
      const { position: _position, ahead: _ahead, turn: _turn, ...rest } = last;
      return (this.last = { ...rest, version: board.version });
    }
    if (wasUndrawn) {
      // All have new places now, and must not ask at once.
      this.resync(now);
      return undefined;
    }
    const lane = board.lanes.find((lane) => lane.lane === last.lane);
    if (!lane?.holes) {
      // Too many holes to list; or the lane was removed, and its tokens are in other lanes.
      this.resync(now);
      return undefined;
    }
    const wasKnown = this.#place.version !== undefined;
    const through = lane.admitted_through;
    const seen =
      board.whole && last.token < lane.next_token
        ? this.#place.wholeBoard(board.version, through, lane.holes)
        : this.#place.board(board.version, board.prev_version ?? 0, through, lane.holes);
    if (seen === "position" && board.version > last.version) return this.#at(last, board, through);
    if (seen === "passed") {
      // A token without a position was drawn, as all were.
      if (last.position === undefined) this.#pollSoon(now);
      else {
        this.pollAt = now;
        this.asksSoon = true;
      }
    } else if (seen === "gap" && wasKnown) {
      // Only the first gap is a reason to ask early: where a status cannot list the holes either, every board is a gap.
      this.#pollSoon(now);
    }
    return undefined;
  }

  #at(last: Status, board: Board, admittedThrough: number): Status | undefined {
    const exact = this.#place.position;
    if (exact === undefined) return undefined;
    // Past the cap the status has the cap as its position, and the token only comes nearer.
    const cap = last.position_capped ? last.position : undefined;
    const capped = cap !== undefined && exact > cap;
    const position = cap === undefined ? exact : Math.min(exact, cap);
    const changed = last.position !== position || (last.position_capped ?? false) !== capped;
    const { turn: _turn, position_capped: _capped, ...rest } = last;
    this.last = {
      ...rest,
      position,
      ahead: position - 1,
      ...(capped ? { position_capped: true } : {}),
      // Boards do not tell how many of other lanes go first.
      ...(board.lanes.length === 1 && !capped ? { turn: position } : {}),
      admitted_through: admittedThrough,
      version: board.version,
      at_ms: board.at_ms,
    };
    return changed ? this.last : undefined;
  }

  #pollSoon(now: number): void {
    this.asksSoon = true;
    this.pollAt = Math.min(this.pollAt, now + Math.random() * RESYNC_SPREAD_MS);
  }
}

const SHOWN = ["state", "position", "turn", "epoch", "reason"] as const;

function hasChanged(last: Status, status: Status): boolean {
  if (SHOWN.some((name) => last[name] !== status[name])) return true;
  if ((last.position_capped ?? false) !== (status.position_capped ?? false)) return true;
  if ((last.call_ahead ?? false) !== (status.call_ahead ?? false)) return true;
  if (last.expires_at_ms === undefined || status.expires_at_ms === undefined) return false;
  return Math.abs(last.expires_at_ms - status.expires_at_ms) > SAME_DEADLINE_MS;
}
