// Checks passes, one a line on standard input, as an edge would: with jose and the key set alone.
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { createLocalJWKSet, jwtVerify } from "jose";

const [file, audience, issuer] = process.argv.slice(2);
const keys = createLocalJWKSet(JSON.parse(readFileSync(file, "utf8")));
for await (const line of createInterface({ input: process.stdin })) {
  const rules = { algorithms: ["EdDSA"], audience, issuer, requiredClaims: ["sub", "iat", "nbf", "exp"] };
  const answer = await jwtVerify(line.trim(), keys, rules).then(
    ({ payload }) => ({ claims: payload }),
    (error) => ({ refused: error.code }),
  );
  console.log(JSON.stringify(answer));
}
