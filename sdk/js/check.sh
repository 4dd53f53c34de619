#!/bin/sh
# Packs the package, installs the tarball in a fresh folder, and runs on it: the types, and all tests.
# NOWSERVING: the program whose `dev` the scenarios run against. SCENARIO: only this one. TRANSPORT: another version of the
# NATS client.
set -eu
cd "$(dirname "$0")"
here=$(pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
[ -d node_modules ] || npm ci --no-audit --no-fund --loglevel=error
npm pack --silent --pack-destination "$folder"
cp -r test "$folder/test"
cd "$folder"
echo '{ "private": true, "type": "module" }' > package.json
npm install --no-audit --no-fund --loglevel=error ./nowserving-*.tgz "${TRANSPORT:-@nats-io/transport-node@3.4.0}"
"$here/node_modules/.bin/tsc" --strict --noEmit --skipLibCheck --target ES2022 --module NodeNext --types '' \
    --lib ES2023,ESNext.Disposable,DOM test/types.ts
CONTRACT="${CONTRACT:-$here/../../contract}" node --test --test-concurrency=1 --test-reporter=spec test/*.test.mjs
