import type { Client } from "./client.js";
import type { Connection } from "./connection.js";
import { randomHex } from "./connection.js";
import { badArgument } from "./errors.js";
import type { Feeds } from "./feed.js";
import { bytesOf, checkedName, shardOfLine } from "./subjects.js";
import type { TrackOptions } from "./track.js";
import { Tracker } from "./track.js";
import type { Info, Seen, Status } from "./types.js";
import { readInfo, readSeen, readStatus } from "./types.js";

/** From where a read is answered: the leader (the default), the leader with a quorum, or any node. */
export type Consistency = "leader" | "linearizable" | "local";

/**
 * One line of a cluster. Made by `client.line`; sends no request by itself.
 *
 * Any call can fail with the kind `unavailable`, and one that changes something with `outcome_unknown`; every call may then
 * be repeated. Each call documents its own refusals, as codes of the kind `refused`.
 */
export class Line {
  readonly name: string;
  readonly client: Client;
  readonly #connection: Connection;
  readonly #feeds: Feeds;

  /** Use `client.line`. */
  constructor(client: Client, connection: Connection, feeds: Feeds, name: string) {
    this.name = checkedName("line", name);
    this.client = client;
    this.#connection = connection;
    this.#feeds = feeds;
  }

  /** The same line with another deadline for its calls. */
  withDeadline(ms: number): Line {
    return this.client.withDeadline(ms).line(this.name);
  }

  /**
   * Takes a number under `key`, 1 to 128 bytes that identify the user in your own terms. If the key has a live token
   * already, the reply is that token's status. The reply has the `ticket`. With undefined for a key each call takes another
   * number.
   *
   * Refusals: `line_not_found`, `line_closed`, `line_full`, `sold_out`; `bad_request` for a lane that the line does not
   * have.
   */
  async enter(key: string | undefined, options: { lane?: string } = {}): Promise<Status & { ticket: string }> {
    // A key makes the attempts of a call one visit for as long as the token lives.
    const body = { key: checkedKey(key ?? `sdk-${randomHex(16)}`), ...without({ lane: options.lane }) };
    return readStatus(await this.#call("enter", body, true)) as Status & { ticket: string };
  }

  /**
   * The live token of a key, with its ticket, without entering.
   *
   * Refusals: `token_not_found`, `line_not_found`.
   */
  async find(key: string): Promise<Status & { ticket: string }> {
    return readStatus(await this.#call("find", { key: checkedKey(key) })) as Status & { ticket: string };
  }

  /**
   * The status of a token. It also marks the token as seen: ask every `poll_after_ms`, or the token is recycled as `idle`.
   * `track` does that. If an operator moved the token into another lane, this and all other calls act on the token as it is
   * now and answer its new `ticket`; the old one stays valid. `pass`: also answer a signed pass, while it holds a seat.
   *
   * Refusals: `ticket_invalid`, `line_not_found`.
   */
  async status(
    ticket: string,
    options: { holes?: boolean; pass?: boolean; consistency?: Consistency } = {},
  ): Promise<Status> {
    const { holes, pass, consistency } = options;
    const flags = { holes: holes || undefined, pass: pass || undefined, consistency };
    return readStatus(await this.#call("status", { ticket, ...without(flags) }));
  }

  /**
   * `status` for a backend that keeps no tickets. The reply has none; `find` answers it.
   *
   * Refusals: `token_not_found` if the key has no live token, `line_not_found`.
   */
  async statusByKey(key: string): Promise<Status> {
    return readStatus(await this.#call("status", { key: checkedKey(key) }));
  }

  /**
   * Marks up to 256 tokens as seen by one message, as `status` of each does: for a gateway that tells many users their
   * places from events. Call it again after `poll_after_ms`.
   *
   * Refusals: `bad_request` without tickets, or with more; `line_not_found`.
   */
  async seen(tickets: readonly string[]): Promise<Seen> {
    return readSeen(await this.#call("seen", { tickets }));
  }

  /**
   * Goes into checkout. The reply has the `epoch`, a number that only grows, and `expires_in_ms`. A repeated call gets the
   * same epoch and the current expiry. `pass`: also answer a signed pass.
   *
   * Refusals: `not_admitted` while it waits, `token_gone`, `ticket_invalid`.
   */
  async claim(ticket: string, options: { pass?: boolean } = {}): Promise<Status & { epoch: number }> {
    const body = { ticket, ...without({ pass: options.pass || undefined }) };
    return readStatus(await this.#call("claim", body, true)) as Status & { epoch: number };
  }

  /**
   * Keeps a claimed seat for another `checkout_timeout_ms`, until `checkout_max_ms` after the claim.
   *
   * Refusals: `epoch_stale`, `not_admitted`, `not_claimed`, `token_gone`, `ticket_invalid`.
   */
  async renew(ticket: string, epoch: number): Promise<Status> {
    return readStatus(await this.#call("renew", { ticket, epoch }, true));
  }

  /**
   * Ends the checkout and gives the seat back; with an `epoch`, only if it is the current one. `units`: how many of the
   * line's quota were used, at most as many as the seat reserves; by default that many.
   *
   * Refusals: `bad_request` for more `units`; `epoch_stale`, `not_admitted`, `not_claimed`, `token_gone` (for another reason
   * than `completed`), `ticket_invalid`.
   */
  async complete(ticket: string, epoch?: number, options: { units?: number } = {}): Promise<Status> {
    return readStatus(await this.#call("complete", { ticket, ...without({ epoch, units: options.units }) }, true));
  }

  /**
   * Leaves the line, waiting or not.
   *
   * Refusals: `token_gone` (for another reason than `left`), `ticket_invalid`.
   */
  async leave(ticket: string): Promise<Status> {
    return readStatus(await this.#call("leave", { ticket }, true));
  }

  /**
   * Moves a waiting token into a lane that allows it, on behalf of its holder. The reply has its new `ticket`.
   *
   * Refusals: `forbidden` if the lane's `jump` is not set, or the token has jumped `jumps_max` times; `not_waiting`,
   * `token_gone`, `ticket_invalid`; `line_full` if the lane is full.
   */
  async jump(ticket: string, to: string): Promise<Status> {
    return readStatus(await this.#call("jump", { ticket, to }, true));
  }

  /**
   * The board, and the settings that users may see.
   *
   * Refusals: `line_not_found`.
   */
  async info(options: { consistency?: Consistency } = {}): Promise<Info> {
    return readInfo(await this.#call("info", without({ consistency: options.consistency })));
  }

  /**
   * A token's exact place, as a status each time it changes:
   *
   *     for await (const place of line.track(ticket)) console.log(place.state, place.position);
   *
   * The first status is the current one. While the token waits, its place is computed from boards at once, and confirmed by
   * a `status` every `poll_after_ms`, which also keeps the token in line. In a lane a position never grows. The tracker
   * follows a token that is moved into another lane: `lane`, `token` and `ticket` change. It ends once the token is gone.
   *
   * Errors after which the place goes on are told to `onError` alone; others are thrown, and end it.
   */
  track(ticket: string, options: TrackOptions = {}): Tracker {
    const tracked = {
      watch: () => this.#feeds.watch(this.name, this.client.deadlineMs),
      status: (ticket: string, holes: boolean) => this.status(ticket, { holes }),
    };
    return new Tracker(tracked, ticket, options);
  }

  #call(op: string, body: object, isWrite = false): Promise<unknown> {
    const { prefix } = this.client;
    return this.#connection.call({
      plain: `${prefix}.line.${this.name}.${op}`,
      onShard: (shards) => `${prefix}.shard.${shardOfLine(this.name, shards)}.${this.name}.${op}`,
      body,
      isWrite,
      withinMs: this.client.deadlineMs,
    });
  }
}

/** What is defined of this. */
function without(fields: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined));
}

function checkedKey(key: string): string {
  const bytes = typeof key === "string" ? bytesOf(key) : 0;
  if (bytes < 1 || bytes > 128) throw badArgument("key: must be a text of 1 to 128 bytes");
  return key;
}
