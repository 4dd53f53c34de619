/** Requests over one NATS connection, and the rights that it lacks. */

import { createInbox, headers as natsHeaders } from "@nats-io/nats-core";
import type { Msg, MsgHdrs, NatsConnection } from "@nats-io/nats-core";

import type { ApiError, Failure } from "./attempts.js";
import { ATTEMPT_MAX_MS, Attempts, REPEAT_MAX_MS } from "./attempts.js";
import { badReply, closed, NowservingError } from "./errors.js";

/** How long a call waits at most for the number of shards before it. */
const DISCOVERY_MAX_MS = 250;
/** The least time between two questions for the number of shards. */
const DISCOVERY_INTERVAL_MS = 5_000;

/** What is used of a connection of nats.js: any version 3 of it has that. */
export interface Nats extends Pick<NatsConnection, "publish" | "flush" | "isClosed"> {
  status(): AsyncIterable<{ type: string }>;
  subscribe(subject: string, options: { callback: (error: Error | null, message: Msg) => void }): Unsubscribe;
}

export interface Unsubscribe {
  unsubscribe(): void;
}

/** A request, and the subjects that it can go to. */
export interface Call {
  plain: string;
  /** The leader's subject in a cluster of so many shards. */
  onShard: (shards: number) => string;
  body: unknown;
  isWrite: boolean;
  withinMs: number;
}

interface Sent {
  subject: string;
  fail: (failure: Failure) => void;
}

/** One NATS connection: requests with replies, each matched by a subject of its own below one inbox. */
export class Connection {
  readonly nats: Nats;
  readonly prefix: string;
  readonly #inboxPrefix: string | undefined;
  #isConnected = true;
  #inbox: { subject: string; subscription: Unsubscribe } | undefined;
  /** By the last word of the subject for the reply. */
  readonly #waiting = new Map<string, (message: Msg) => void>();
  readonly #sent = new Set<Sent>();
  readonly #onReconnect = new Set<() => void>();
  readonly #onRefused = new Set<(subject: string) => void>();
  readonly #onClose = new Set<() => void>();
  /** No call can succeed until the connection is made again. */
  #lasting: NowservingError | undefined;
  /** The number of shards; undefined while it is not known. */
  #shards: number | undefined;
  /** A shard's subject had no subscribers: there is no leader now, or the number is wrong. */
  #shardsSuspect = false;
  #shardsAskedAt = -Infinity;

  constructor(nats: Nats, prefix: string, inboxPrefix: string | undefined) {
    this.nats = nats;
    this.prefix = prefix;
    // What the connection was made with, if it says so.
    const options = (nats as { options?: { inboxPrefix?: string } }).options;
    this.#inboxPrefix = inboxPrefix ?? options?.inboxPrefix;
    void this.#follow();
  }

  /** Follows the connection's state and errors until it is closed. */
  async #follow(): Promise<void> {
    for await (const status of this.nats.status()) {
      if (status.type === "disconnect") this.#isConnected = false;
      else if (status.type === "reconnect") {
        this.#isConnected = true;
        this.#lasting = undefined;
        for (const tell of [...this.#onReconnect]) tell();
      } else if (status.type === "error") {
        // By its fields: the connection may come from another copy of the library.
        const { error } = status as { error?: { operation?: unknown; subject?: unknown } };
        const { operation, subject } = error ?? {};
        if (typeof operation === "string" && typeof subject === "string") this.#refused(operation, subject);
      } else if (status.type === "close") break;
    }
    this.#isConnected = false;
    for (const sent of [...this.#sent]) sent.fail({ type: "fatal", error: closed() });
    for (const tell of [...this.#onClose]) tell();
  }

  #refused(operation: string, subject: string): void {
    if (operation === "publish") {
      const error = forbidden(`this NATS user may not publish to ${subject}`);
      for (const sent of [...this.#sent]) {
        if (forbidsSending(subject, sent.subject, this.prefix)) sent.fail({ type: "fatal", error });
      }
      return;
    }
    if (this.#inbox && subject === `${this.#inbox.subject}.*`) {
      this.#inbox = undefined;
      const hint = "(inboxPrefix: the inbox that the role may use)";
      const error = forbidden(`this NATS user may not subscribe to ${subject} ${hint}`);
      this.#lasting = error;
      for (const sent of [...this.#sent]) sent.fail({ type: "fatal", error });
    }
    for (const tell of [...this.#onRefused]) tell(subject);
  }

  /** Tells of reconnects, of subscriptions that the server refuses, and of the end. Returns what ends that. */
  listen(tells: { reconnect: () => void; refused: (subject: string) => void; closed: () => void }): () => void {
    this.#onReconnect.add(tells.reconnect);
    this.#onRefused.add(tells.refused);
    this.#onClose.add(tells.closed);
    return () => {
      this.#onReconnect.delete(tells.reconnect);
      this.#onRefused.delete(tells.refused);
      this.#onClose.delete(tells.closed);
    };
  }

  /** Sends attempts until a reply, a final refusal or the deadline. Returns the reply's JSON. */
  async call(call: Call): Promise<unknown> {
    let deadline = now() + call.withinMs;
    const shards = await this.#knownShards(call.withinMs / 4);
    const shardSubject = shards === undefined ? undefined : call.onShard(shards);
    const payload = JSON.stringify(call.body);
    const attempts = new Attempts(call.isWrite, shardSubject !== undefined);
    const requestId = call.isWrite ? randomHex(16) : undefined;
    for (;;) {
      const onLeader = attempts.route === "shard" && shardSubject !== undefined;
      const sentAt = now();
      const waitMs = Math.min(Math.max(deadline - sentAt, 1), ATTEMPT_MAX_MS);
      const answer = await this.#attempt(onLeader ? shardSubject : call.plain, payload, requestId, waitMs);
      if ("reply" in answer) return answer.reply;
      if (onLeader && answer.type === "no_responders") this.#shardsSuspect = true;
      const wasCertain = !attempts.uncertain;
      const pause = attempts.after(answer, deadline - now());
      if (wasCertain && attempts.uncertain) deadline = Math.min(deadline, sentAt + REPEAT_MAX_MS);
      if (pause > 0) await sleep(pause);
    }
  }

  async #attempt(
    subject: string,
    payload: string,
    requestId: string | undefined,
    waitMs: number,
  ): Promise<Failure | { reply: unknown }> {
    const headers = natsHeaders();
    // A little less than the wait, so that the cluster's own word on a lost time still arrives.
    headers.set("Nowserving-Timeout-Ms", String(Math.max(1, Math.floor((waitMs * 10) / 11))));
    if (requestId !== undefined) {
      // So the cluster can refuse a write that comes late, and recognise a copy of one that it has served.
      headers.set("Nowserving-Sent-Ms", String(Date.now()));
      headers.set("Nowserving-Request-Id", requestId);
    }
    const answer = await this.#request(subject, payload, headers, waitMs);
    if (!("data" in answer)) return answer;
    try {
      const reply = answer.json<unknown>();
      if (!answer.headers?.has("Nats-Service-Error")) return { reply };
      const error = (reply as { error?: ApiError } | null)?.error;
      if (typeof error?.code === "string") return { type: "answered", error };
    } catch {
      // Said below.
    }
    return { type: "fatal", error: badReply("no JSON, or an error without its code") };
  }

  #request(
    subject: string,
    payload: string,
    headers: MsgHdrs | undefined,
    waitMs: number,
    isAnswer: (message: Msg) => boolean = () => true,
  ): Promise<Failure | Msg> {
    if (this.nats.isClosed()) return Promise.resolve({ type: "fatal", error: closed() });
    // The library would keep the request and send it once it is connected again, long after the call has ended.
    if (!this.#isConnected) return Promise.resolve({ type: "disconnected" });
    if (this.#lasting) return Promise.resolve({ type: "fatal", error: this.#lasting });
    return new Promise((resolve) => {
      const token = randomHex(8);
      const done = (answer: Failure | Msg) => {
        clearTimeout(timer);
        this.#waiting.delete(token);
        this.#sent.delete(sent);
        resolve(answer);
      };
      const sent: Sent = { subject, fail: done };
      const timer = setTimeout(() => done({ type: "no_answer" }), waitMs);
      this.#sent.add(sent);
      this.#waiting.set(token, (message) => {
        if (message.data.length === 0 && message.headers?.code === 503) done({ type: "no_responders" });
        else if (isAnswer(message)) done(message);
      });
      try {
        const reply = `${this.#replies()}.${token}`;
        this.nats.publish(subject, payload, headers ? { reply, headers } : { reply });
      } catch (cause) {
        const text = cause instanceof Error ? cause.message : String(cause);
        // More than the server takes, or a connection that is being closed.
        const isLarge = text.includes("max_payload");
        const error = new NowservingError(
          isLarge ? "bad_argument" : "connection",
          isLarge ? "bad_request" : "unavailable",
          text,
          { cause },
        );
        done({ type: "fatal", error });
      }
    });
  }

  /** Where replies come. */
  #replies(): string {
    if (!this.#inbox) {
      const subject = createInbox(this.#inboxPrefix);
      const callback = (error: Error | null, message: Msg) => {
        if (!error) this.#waiting.get(message.subject.slice(message.subject.lastIndexOf(".") + 1))?.(message);
      };
      this.#inbox = { subject, subscription: this.nats.subscribe(`${subject}.*`, { callback }) };
    }
    return this.#inbox.subject;
  }

  /** The number of shards. One caller at a time waits for the answer; others go on with what is known. */
  async #knownShards(patienceMs: number): Promise<number | undefined> {
    if (this.#shards !== undefined && !this.#shardsSuspect) return this.#shards;
    if (now() - this.#shardsAskedAt < DISCOVERY_INTERVAL_MS) return this.#shards;
    this.#shardsAskedAt = now();
    const waitMs = Math.min(patienceMs, DISCOVERY_MAX_MS);
    const isOurs = (message: Msg) => shardsOf(message.string(), this.prefix) !== undefined;
    const answer = await this.#request("$SRV.INFO.nowserving", "", undefined, waitMs, isOurs);
    // A call that lacks a right says so itself.
    if ("data" in answer) {
      this.#shards = shardsOf(answer.string(), this.prefix);
      this.#shardsSuspect = false;
    }
    return this.#shards;
  }
}

/** The number of shards in the answer of a node that serves `prefix`. */
export function shardsOf(text: string, prefix: string): number | undefined {
  try {
    const { metadata } = JSON.parse(text) as { metadata: { prefix?: string; shards: string } };
    if ((metadata.prefix ?? prefix) !== prefix) return undefined;
    const shards = Number(metadata.shards);
    return Number.isSafeInteger(shards) && shards > 0 ? shards : undefined;
  } catch {
    return undefined;
  }
}

/** Whether a message to `sent` was refused under this subject: a server checks rights after its mappings. */
export function forbidsSending(refused: string, sent: string, prefix: string): boolean {
  if (refused === sent) return true;
  const [plain, mapped] = [`${prefix}.line.`, `${prefix}.shard.`];
  if (!sent.startsWith(plain) || !refused.startsWith(mapped)) return false;
  const rest = refused.slice(mapped.length);
  return rest.slice(rest.indexOf(".") + 1) === sent.slice(plain.length);
}

export function forbidden(message: string): NowservingError {
  return new NowservingError("forbidden", "forbidden", message);
}

/** Milliseconds that only grow. */
export function now(): number {
  return performance.now();
}

export function randomHex(bytes: number): string {
  const numbers = crypto.getRandomValues(new Uint8Array(bytes));
  return Array.from(numbers, (number) => number.toString(16).padStart(2, "0")).join("");
}

/** A time to pass. With a signal, ends early when that aborts. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal?.aborted) return resolve();
    const end = () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", end);
      resolve();
    };
    // A longer one would end at once.
    const timer = setTimeout(end, Math.min(ms, 0x7fff_ffff));
    signal?.addEventListener("abort", end);
  });
}
