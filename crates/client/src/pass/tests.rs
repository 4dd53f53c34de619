#![allow(clippy::unwrap_used)]
use nowserving_line::LaneName;
use nowserving_pass::{Jwks, PASS_MS_MAX, PassKey, PassKeys};
use nowserving_protocol::keys::ClusterKey;

use super::*;

const NOW_S: u64 = 1_766_222_333;
const HOUR_S: u64 = PASS_MS_MAX / 1_000;

fn key(seed: u8) -> PassKey {
    PassKey::of(&ClusterKey::new([seed; 32]))
}

fn verifier(key: PassKey) -> PassVerifier {
    PassVerifier::new(&PassKeys::one(key).jwks()).unwrap()
}

fn checker() -> PassChecker {
    PassChecker::new("shop".parse().unwrap(), verifier(key(7)))
}

fn normal() -> LaneName {
    "normal".parse().unwrap()
}

fn claims(token: u64, epoch: u64) -> PassClaims {
    PassClaims {
        iss: "nowserving/main".to_owned(),
        aud: "shop".to_owned(),
        sub: format!("shop/7/normal/{token}"),
        line: "shop".parse().unwrap(),
        incarnation: 7,
        lane: normal(),
        token,
        epoch,
        iat: NOW_S,
        nbf: NOW_S,
        exp: NOW_S + 600,
    }
}

fn pass(token: u64, epoch: u64) -> String {
    key(7).sign(&claims(token, epoch)).into_string()
}

fn token(event: &str, token: u64, at_s: u64) -> TokenEvent {
    TokenEvent {
        units: None,
        line: "shop".parse().unwrap(),
        incarnation: 7,
        version: 10,
        prev_version: 9,
        at_ms: at_s * 1_000,
        event: event.to_owned(),
        lane: normal(),
        token,
        key: None,
        position: None,
        epoch: None,
        reason: None,
        to_lane: None,
        to_token: None,
        by: None,
    }
}

fn line(event: &str, incarnation: u64, at_s: u64) -> LineEvent {
    LineEvent {
        line: "shop".parse().unwrap(),
        incarnation,
        version: 10,
        prev_version: 9,
        at_ms: at_s * 1_000,
        event: event.to_owned(),
        phase: None,
        lane: None,
        keys: None,
        seats: None,
        silent: None,
        commitment: None,
        seed: None,
        beacon: None,
        took_part: None,
        digest: None,
        scheduled_at_ms: None,
        code: None,
        message: None,
    }
}

/// The outcome at [`NOW_S`].
fn outcome(checker: &PassChecker, pass: &str) -> std::result::Result<u64, BadPass> {
    checker.check_at(pass, NOW_S).map(|claims| claims.token)
}

#[test]
fn a_pass_is_checked_without_a_connection() {
    let checker = checker();
    assert_eq!(outcome(&checker, &pass(18, 3)), Ok(18));
    assert_eq!(
        checker.check_at(&pass(18, 3), NOW_S + 600),
        Err(BadPass::Expired)
    );
    // By the clock of this machine, years later or earlier.
    assert!(checker.check(&pass(18, 3)).is_err());
    let of_another = PassClaims {
        aud: "shop-2".to_owned(),
        line: "shop-2".parse().unwrap(),
        ..claims(18, 3)
    };
    let of_another = key(7).sign(&of_another);
    assert_eq!(
        outcome(&checker, of_another.as_str()),
        Err(BadPass::Audience)
    );
    let forged = key(8).sign(&claims(18, 3));
    assert_eq!(outcome(&checker, forged.as_str()), Err(BadPass::UnknownKey));
    // After a rotation.
    let both = PassKeys {
        current: key(8),
        other: Some(key(7)),
    };
    let jwks: Jwks = both.jwks();
    checker.set_keys(PassVerifier::new(&jwks).unwrap());
    assert_eq!(outcome(&checker, forged.as_str()), Ok(18));
    assert_eq!(outcome(&checker, &pass(18, 3)), Ok(18));
}

#[test]
fn a_token_that_is_gone_passes_no_more() {
    let checker = checker();
    checker.token_at(&token("entered", 18, NOW_S), NOW_S);
    checker.token_at(&token("admitted", 18, NOW_S), NOW_S);
    assert_eq!(outcome(&checker, &pass(18, 3)), Ok(18));
    let other_line = TokenEvent {
        line: "shop-2".parse().unwrap(),
        ..token("gone", 18, NOW_S)
    };
    checker.token_at(&other_line, NOW_S);
    let earlier = TokenEvent {
        incarnation: 6,
        ..token("gone", 18, NOW_S)
    };
    checker.token_at(&earlier, NOW_S);
    assert_eq!(outcome(&checker, &pass(18, 3)), Ok(18));
    checker.token_at(&token("gone", 18, NOW_S), NOW_S);
    assert_eq!(outcome(&checker, &pass(18, 3)), Err(BadPass::Revoked));
    assert_eq!(
        outcome(&checker.clone(), &pass(18, 3)),
        Err(BadPass::Revoked)
    );
    assert_eq!(outcome(&checker, &pass(19, 3)), Ok(19), "its neighbour");
    // A forged one is not said to be revoked.
    let forged = key(8).sign(&claims(18, 3));
    assert_eq!(outcome(&checker, forged.as_str()), Err(BadPass::UnknownKey));
}

#[test]
fn a_claim_revokes_passes_with_older_epochs() {
    let checker = checker();
    let claimed = TokenEvent {
        epoch: Some(5),
        ..token("claimed", 18, NOW_S)
    };
    assert_eq!(outcome(&checker, &pass(18, 0)), Ok(18));
    checker.token_at(&claimed, NOW_S);
    for (epoch, expected) in [
        (0, Err(BadPass::Revoked)),
        (4, Err(BadPass::Revoked)),
        (5, Ok(18)),
        (6, Ok(18)),
    ] {
        assert_eq!(outcome(&checker, &pass(18, epoch)), expected, "{epoch}");
    }
    // From an older release.
    checker.token_at(&token("claimed", 20, NOW_S), NOW_S);
    assert_eq!(outcome(&checker, &pass(20, 0)), Err(BadPass::Revoked));
    assert_eq!(outcome(&checker, &pass(20, 1)), Ok(20));
}

#[test]
fn a_late_event_makes_no_revoked_pass_good() {
    let checker = checker();
    let claimed = |epoch| TokenEvent {
        epoch: Some(epoch),
        ..token("claimed", 18, NOW_S)
    };
    checker.token_at(&claimed(5), NOW_S);
    checker.token_at(&claimed(4), NOW_S);
    assert_eq!(outcome(&checker, &pass(18, 4)), Err(BadPass::Revoked));
    checker.token_at(&token("gone", 18, NOW_S + 1), NOW_S + 1);
    checker.token_at(&claimed(5), NOW_S + 1);
    assert_eq!(outcome(&checker, &pass(18, 5)), Err(BadPass::Revoked));
}

#[test]
fn where_events_are_missing_older_passes_are_refused() {
    let checker = checker();
    let entered = |prev_version, version, at_s| TokenEvent {
        version,
        prev_version,
        ..token("entered", 30, at_s)
    };
    let signed_at = |iat| {
        let claims = PassClaims {
            iat,
            ..claims(18, 3)
        };
        key(7).sign(&claims).into_string()
    };
    // The first event of all: nobody asked for those before it.
    checker.token_at(&entered(9, 10, NOW_S), NOW_S);
    checker.token_at(&entered(10, 13, NOW_S), NOW_S);
    // Late, of the leader before.
    checker.token_at(&entered(11, 12, NOW_S), NOW_S);
    assert_eq!(outcome(&checker, &signed_at(NOW_S)), Ok(18));
    // Those of 14 and 15 did not come.
    checker.token_at(&entered(15, 16, NOW_S + 5), NOW_S);
    assert_eq!(
        outcome(&checker, &signed_at(NOW_S + 5)),
        Err(BadPass::Revoked)
    );
    let later = signed_at(NOW_S + 6);
    assert_eq!(outcome(&checker, &later), Ok(18));
    checker.missed_events();
    assert_eq!(outcome(&checker, &later), Err(BadPass::Revoked));
}

/// A lost connection on which no event ever came, and a line that was made anew meanwhile.
#[test]
fn what_was_missed_counts_before_the_first_event_and_over_incarnations() {
    let checker = checker();
    checker.missed_events();
    assert_eq!(outcome(&checker, &pass(18, 3)), Err(BadPass::Revoked));
    checker.token_at(&token("entered", 30, NOW_S), NOW_S);
    assert_eq!(outcome(&checker, &pass(18, 3)), Err(BadPass::Revoked));
    checker.line(&line("created", 8, NOW_S));
    let of_the_next = PassClaims {
        incarnation: 8,
        ..claims(18, 3)
    };
    let of_the_next = key(7).sign(&of_the_next);
    assert_eq!(
        outcome(&checker, of_the_next.as_str()),
        Err(BadPass::Revoked)
    );
}

#[test]
fn the_events_of_tokens_may_overtake_those_of_the_line() {
    let checker = checker();
    let gone = |nth, version| TokenEvent {
        version,
        ..token("gone", nth, NOW_S)
    };
    let later = |nth| {
        let claims = PassClaims {
            iat: NOW_S + 1,
            ..claims(nth, 3)
        };
        key(7).sign(&claims).into_string()
    };
    checker.token_at(&gone(18, 9), NOW_S);
    checker.token_at(&gone(19, 11), NOW_S);
    // Of version 10.
    checker.line(&line("restored", 7, NOW_S));
    checker.token_at(&gone(20, 8), NOW_S);
    assert_eq!(outcome(&checker, &later(18)), Ok(18), "it lives again");
    assert_eq!(outcome(&checker, &later(19)), Err(BadPass::Revoked));
    assert_eq!(outcome(&checker, &later(20)), Ok(20), "it lives again");
}

#[test]
fn a_line_that_is_put_back_or_made_anew_takes_no_older_pass() {
    let checker = checker();
    checker.line(&line("phase", 7, NOW_S));
    assert_eq!(outcome(&checker, &pass(18, 3)), Ok(18));
    checker.line(&line("restored", 7, NOW_S));
    assert_eq!(outcome(&checker, &pass(18, 3)), Err(BadPass::Revoked));
    let later = PassClaims {
        iat: NOW_S + 1,
        ..claims(18, 3)
    };
    let later = key(7).sign(&later);
    assert_eq!(outcome(&checker, later.as_str()), Ok(18));
    checker.line(&line("created", 8, NOW_S + 1));
    assert_eq!(outcome(&checker, later.as_str()), Err(BadPass::Revoked));
    let of_new = PassClaims {
        incarnation: 8,
        ..claims(18, 3)
    };
    assert_eq!(outcome(&checker, key(7).sign(&of_new).as_str()), Ok(18));
    checker.line(&line("deleted", 8, NOW_S));
    let refused = outcome(&checker, key(7).sign(&of_new).as_str());
    assert_eq!(refused, Err(BadPass::Revoked));
}

#[test]
fn what_is_remembered_is_dropped_once_no_pass_can_be_good() {
    let mut revoked = Revoked::with_room(100);
    for nth in 0..10 {
        revoked.token(&token("gone", nth, NOW_S), NOW_S);
    }
    assert_eq!(revoked.marks(), 10);
    assert!(revoked.has(&claims(9, 1)));
    let much_later = NOW_S + HOUR_S + 61;
    revoked.token(&token("gone", 20, much_later), much_later);
    assert_eq!(revoked.marks(), 1);
    assert!(!revoked.has(&claims(9, 1)), "it has expired long since");
}

#[test]
fn without_room_old_passes_are_refused_rather_than_revoked_ones_taken() {
    let mut revoked = Revoked::with_room(100);
    for nth in 0..100 {
        revoked.token(&token("gone", nth, NOW_S + nth), NOW_S + nth);
    }
    assert!(!revoked.has(&claims(200, 1)));
    // The mark of token 0 makes room for another.
    revoked.token(&token("gone", 100, NOW_S + 100), NOW_S + 100);
    assert_eq!(revoked.marks(), 100);
    assert!(revoked.has(&claims(0, 1)), "as it is as old as the event");
    assert!(revoked.has(&claims(200, 1)), "the same");
    let fresh = PassClaims {
        iat: NOW_S + 1,
        ..claims(200, 1)
    };
    assert!(!revoked.has(&fresh));
    // One token, again and again, takes the room of one.
    let mut revoked = Revoked::with_room(100);
    for nth in 0..1_000 {
        revoked.token(&token("claimed", 1, NOW_S + nth), NOW_S + nth);
        assert!(revoked.marks() <= 100);
    }
    let fresh = PassClaims {
        iat: NOW_S + 1_000,
        ..claims(1, 1)
    };
    assert!(!revoked.has(&fresh));
}
