import { badArgument } from "./errors.js";

const NAME = /^[A-Za-z0-9_-]{1,64}$/;
const PREFIX = /^[^\s.*>]+(\.[^\s.*>]+)*$/;

const utf8 = new TextEncoder();

/** How many bytes a text has as UTF-8. */
export function bytesOf(text: string): number {
  return utf8.encode(text).length;
}

/** Checks the name of a line, a lane or a domain. */
export function checkedName(what: string, name: string): string {
  if (typeof name !== "string" || !NAME.test(name)) throw badArgument(`${what}: must be [A-Za-z0-9_-]{1,64}`);
  return name;
}

/** Checks the first word or words of subjects. */
export function checkedPrefix(prefix: string): string {
  if (!PREFIX.test(prefix)) throw badArgument("prefix: must be words joined by dots, without spaces, * and >");
  return prefix;
}

function fnv1a32(bytes: Iterable<number>): number {
  let hash = 0x811c9dc5;
  for (const byte of bytes) hash = Math.imul(hash ^ byte, 0x01000193);
  return hash >>> 0;
}

/** The number of a line's shard in a cluster with so many shards. */
export function shardOfLine(line: string, shards: number): number {
  return fnv1a32(utf8.encode(line)) % shards;
}

/** The shard that a check with this first descriptor goes to. */
export function shardOfCheck(
  domain: string,
  descriptor: ReadonlyArray<{ key: string; value?: string }>,
  shards: number,
): number {
  const bytes: number[] = [];
  for (const text of [domain, ...descriptor.flatMap(({ key, value }) => [key, value ?? ""])]) {
    const encoded = utf8.encode(text);
    bytes.push((encoded.length >> 8) & 0xff, encoded.length & 0xff, ...encoded);
  }
  return fnv1a32(bytes) % shards;
}
