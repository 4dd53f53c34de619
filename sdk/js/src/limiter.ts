import type { Connection } from "./connection.js";
import { now, sleep } from "./connection.js";
import { badArgument, NowservingError } from "./errors.js";
import { isUnanswered, LimiterHealth, PROBE_EVERY_MS } from "./health.js";
import { bytesOf, checkedName, shardOfCheck } from "./subjects.js";
import type { CheckReply } from "./types.js";
import { readCheck } from "./types.js";

/** The options of a limiter. */
export interface LimiterOptions {
  /**
   * What becomes of a check that is not answered within `patienceMs`. `allow` (the default): the request passes. `deny`: it
   * is refused. `fail`: the error is thrown, for callers that decide themselves.
   */
  onUnavailable?: "allow" | "deny" | "fail";
  /** How long the cluster may take to answer a check, all attempts together; default 1,000. */
  patienceMs?: number;
}

/** `{ key: value, … }`; for a key twice `[{ key, value }, …]`. */
export type Descriptor = Readonly<Record<string, string>> | ReadonlyArray<{ key: string; value?: string }>;

/** The options of a check. */
export interface CheckOptions {
  /** Counts on each descriptor; default 1. With 0 the answer says what is left. */
  hits?: number;
  /** Nothing is counted. */
  dryRun?: boolean;
  /** The longest `delay_ms` that the caller accepts. */
  maxDelayMs?: number;
}

interface Body {
  descriptors: Array<Array<{ key: string; value: string }>>;
  hits?: number;
  dry_run?: true;
  max_delay_ms?: number;
}

/** What came of asking: an answer, the error of a call without one, or nothing, if the cluster was not asked. */
type Asked = { reply: CheckReply } | { error: NowservingError | undefined };

/**
 * A caller that waits until it is allowed asks again after at least the first, and after each refusal twice as long, up to
 * the second.
 */
const PAUSE_MIN_MS = 5;
const PAUSE_MIN_MAX_MS = 250;

/**
 * The rate limits of one domain. Made by `client.limiter`:
 *
 *     const reply = await client.limiter("shop").check([{ remote_address: "127.0.0.1" }]);
 *     if (!reply.allowed) console.log(429, reply.retry_after_ms);
 */
export class Limiter {
  readonly domain: string;
  readonly #connection: Connection;
  readonly #onUnavailable: "allow" | "deny" | "fail";
  readonly #patienceMs: number;
  readonly #health = new LimiterHealth();

  /** Use `client.limiter`. */
  constructor(connection: Connection, domain: string, options: LimiterOptions) {
    this.domain = checkedName("domain", domain);
    this.#connection = connection;
    this.#onUnavailable = options.onUnavailable ?? "allow";
    this.#patienceMs = options.patienceMs ?? 1_000;
  }

  /** Whether the cluster is away, so that `onUnavailable` decides without asking it. */
  get isAway(): boolean {
    return this.#health.isAway;
  }

  /**
   * `hits` on each of these descriptors. Over the limit is an answer, not an error: `allowed`. If the cluster does not
   * answer, `onUnavailable` decides, and the answer has `without_cluster`. A request counts on all of its limits or on none.
   *
   * The attempts of one call are one hit on exact limits. On others an attempt whose answer was lost may count as well, so
   * that the limit holds.
   *
   * Throws `bad_argument`, before anything is sent; `refused`; `forbidden`; with `fail` what the call failed with.
   */
  async check(descriptors: readonly Descriptor[], options: CheckOptions = {}): Promise<CheckReply> {
    const body = bodyOf(descriptors, options);
    const asked = await this.#ask(body, this.#patienceMs);
    return "reply" in asked ? asked.reply : this.#withoutCluster(body, asked.error);
  }

  /**
   * Asks until the request is allowed, and waits as long as a leaking bucket says. Undefined: not within this time, or
   * never, as it has more hits than the limit allows at once. It ends as soon as it knows that. Throws as `check`.
   */
  async waitUntilAllowed(
    descriptors: readonly Descriptor[],
    options: { withinMs: number; hits?: number },
  ): Promise<CheckReply | undefined> {
    const until = now() + options.withinMs;
    let wasRefused = false;
    let pauseMin = PAUSE_MIN_MS;
    for (;;) {
      const before = until - now();
      // Some of the time that is left is for the answer.
      const maxDelayMs = Math.max(0, Math.floor(before - Math.min(this.#patienceMs, before / 4)));
      const body = bodyOf(descriptors, { ...(options.hits === undefined ? {} : { hits: options.hits }), maxDelayMs });
      const asked = await this.#ask(body, Math.min(this.#patienceMs, before));
      let reply: CheckReply;
      if ("reply" in asked) reply = asked.reply;
      // It was over its limit, and its last attempt had too little time: that says nothing of the cluster.
      else if (wasRefused && before < this.#patienceMs && asked.error) return undefined;
      else reply = this.#withoutCluster(body, asked.error);
      const left = until - now();
      const delayMs = reply.delay_ms ?? 0;
      if (reply.allowed) {
        if (delayMs > left) return undefined;
        if (delayMs > 0) await sleep(delayMs);
        return reply;
      }
      if (typeof reply.retry_after_ms !== "number" || delayMs > maxDelayMs) return undefined;
      const retryAfterMs = Math.max(reply.retry_after_ms, 1);
      if (retryAfterMs >= left) return undefined;
      wasRefused ||= !reply.without_cluster;
      const pause = Math.max(retryAfterMs, Math.min(pauseMin, left / 2));
      // No two callers that were refused together ask again at the same moment.
      await sleep(pause + Math.min(Math.min(pause / 8, 50) * Math.random(), Math.max(0, left - pause) / 2));
      pauseMin = Math.min(pauseMin * 2, PAUSE_MIN_MAX_MS);
      if (until <= now()) return undefined;
    }
  }

  async #ask(body: Body, withinMs: number): Promise<Asked> {
    // A caller that wants the error gets that of its own call.
    if (this.#onUnavailable !== "fail" && !this.#health.mayAsk(this.#patienceMs)) return { error: undefined };
    const sent = now();
    const { prefix } = this.#connection;
    try {
      const reply = await this.#connection.call({
        plain: `${prefix}.limit.${this.domain}.check`,
        // The leader of the first descriptor's shard answers from its memory, if it has the others' counters, too.
        onShard: (shards) => {
          const shard = shardOfCheck(this.domain, body.descriptors[0] ?? [], shards);
          return `${prefix}.leader.${shard}.limit.${this.domain}.check`;
        },
        body,
        isWrite: !body.dry_run,
        withinMs,
      });
      this.#health.answered();
      return { reply: readCheck(reply) };
    } catch (error) {
      if (error instanceof NowservingError && error.kind === "refused") this.#health.answered();
      if (!isUnanswered(error)) throw error;
      // A call that was given less time proves nothing, and a busy cluster is not away.
      if (withinMs === this.#patienceMs && error.lastCode !== "overloaded") this.#health.failed(sent);
      return { error };
    }
  }

  #withoutCluster(body: Body, error: NowservingError | undefined): CheckReply {
    if (this.#onUnavailable === "fail") {
      throw error ?? new NowservingError("unavailable", "unavailable", "the cluster does not answer");
    }
    const allowed = this.#onUnavailable === "allow";
    return {
      allowed,
      descriptors: body.descriptors.map(() => ({ allowed })),
      retry_after_ms: allowed ? null : PROBE_EVERY_MS,
      without_cluster: true,
    };
  }
}

/** Nodes would refuse what is malformed. It is checked here too, also while the cluster is away. */
function bodyOf(descriptors: readonly Descriptor[], options: CheckOptions): Body {
  if (!Array.isArray(descriptors) || descriptors.length < 1 || descriptors.length > 16) {
    throw badArgument("descriptors: 1 to 16 descriptors");
  }
  const { hits, dryRun, maxDelayMs } = options;
  if (hits !== undefined && !(Number.isInteger(hits) && hits >= 0 && hits <= 0xffff_ffff)) {
    throw badArgument("hits: 0 to 4294967295");
  }
  return {
    descriptors: descriptors.map(entries),
    ...(hits === undefined ? {} : { hits }),
    ...(dryRun ? { dry_run: true } : {}),
    ...(maxDelayMs === undefined ? {} : { max_delay_ms: maxDelayMs }),
  };
}

function entries(descriptor: Descriptor, nth: number): Array<{ key: string; value: string }> {
  const list = Array.isArray(descriptor)
    ? (descriptor as ReadonlyArray<{ key: string; value?: string }>).map(({ key, value }) => ({ key, value: value ?? "" }))
    : Object.entries(descriptor).map(([key, value]) => ({ key, value: String(value) }));
  const field = `descriptors[${nth}]`;
  if (list.length < 1 || list.length > 16) throw badArgument(`${field}: 1 to 16 entries`);
  for (const [place, { key, value }] of list.entries()) {
    const bytes = bytesOf(key);
    if (bytes < 1 || bytes > 256) throw badArgument(`${field}[${place}].key: 1 to 256 bytes`);
    if (bytesOf(value) > 1_024) throw badArgument(`${field}[${place}].value: at most 1024 bytes`);
  }
  return list;
}
