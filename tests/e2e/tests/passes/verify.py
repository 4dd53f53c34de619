"""Checks passes, one a line on standard input, as an edge would: with PyJWT and the key set alone."""

import json
import sys

import jwt

file, audience, issuer = sys.argv[1:]
with open(file, encoding="utf-8") as opened:
    keys = {key.key_id: key.key for key in jwt.PyJWKSet.from_dict(json.load(opened)).keys}

for line in sys.stdin:
    try:
        text = line.strip()
        claims = jwt.decode(
            text,
            keys[jwt.get_unverified_header(text)["kid"]],
            algorithms=["EdDSA"],
            audience=audience,
            issuer=issuer,
            options={"require": ["iss", "aud", "sub", "iat", "nbf", "exp"]},
        )
        print(json.dumps({"claims": claims}))
    except (jwt.PyJWTError, KeyError) as error:
        print(json.dumps({"refused": type(error).__name__}))
