/**
 * The JavaScript SDK of nowserving: enter lines, follow exact places, claim seats, check rate limits, guard handlers.
 *
 * Every call has one deadline over all its attempts. Until then it finds the leader of the line's shard, follows a change
 * of leader, and repeats the request: a request that changes something carries one request id in all its attempts, by which
 * the cluster recognises a copy. A refusal by the cluster is final and thrown at once, with its `code`.
 */

export type { ClientOptions } from "./client.js";
export type { Nats } from "./connection.js";
export { Client } from "./client.js";
export type { Kind } from "./errors.js";
export { NowservingError } from "./errors.js";
export type { Ask, GuardOptions } from "./guard.js";
export { Guard, Slot } from "./guard.js";
export type { CheckOptions, Descriptor, LimiterOptions } from "./limiter.js";
export { Limiter } from "./limiter.js";
export type { Consistency } from "./line.js";
export { Line } from "./line.js";
export type { Standing } from "./places.js";
export { PlacesFromEvents } from "./places.js";
export { shardOfCheck, shardOfLine } from "./subjects.js";
export type { TrackOptions } from "./track.js";
export { Tracker } from "./track.js";
export type * from "./types.js";
export { readBoard, readStatus } from "./types.js";
export { View } from "./view.js";
