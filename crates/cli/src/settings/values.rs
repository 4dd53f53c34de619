//! Settings that are more than a number, as they are typed and shown.

use std::collections::BTreeMap;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use nowserving_client::{
    Admission, AdmissionRate, Gate, LaneName, LaneSettings, Opening, PerSecond, Phase,
};
use nowserving_line::{
    BOOST_MS_MAX, POSITION_EVENT_MAX, QUEUE_LIMIT_MAX, RATE_BURST_MAX, RENEW_MS_MAX, RENEW_MS_MIN,
    Renew, SEATS_MAX, ZoneName,
};
use nowserving_protocol::time;

use nowserving_terminal::{duration, number};

/// A number of seats. 0 is a frequent wish to stop admitting, so its refusal says how.
pub fn seats(text: &str) -> Result<u64, String> {
    let range = 1..=SEATS_MAX.into();
    number::between(range)(text).map_err(|refusal| match text {
        "0" => format!("{refusal}; to stop admitting: --phase paused"),
        _ => refusal,
    })
}

/// `name=value`
pub fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("not NAME=VALUE".to_owned()),
    }
}

/// Labels by name; each name once.
pub fn labels(
    given: impl IntoIterator<Item = (String, String)>,
) -> Result<BTreeMap<String, String>, String> {
    let mut labels = BTreeMap::new();
    for (name, value) in given {
        if labels.contains_key(&name) {
            return Err(format!("--label: {name:?} is given twice"));
        }
        labels.insert(name, value);
    }
    Ok(labels)
}

/// The contract's words for phases.
pub fn phase() -> impl TypedValueParser<Value = Phase> {
    let words = PossibleValuesParser::new(Phase::ALL.map(Phase::as_str));
    words.try_map(|word| Phase::parse(&word).ok_or("not a phase"))
}

/// The contract's words for how tokens are admitted.
pub fn admission() -> impl TypedValueParser<Value = Admission> {
    let words = PossibleValuesParser::new(Admission::ALL.map(Admission::as_str));
    words.try_map(|word| Admission::parse(&word).ok_or("auto or called"))
}

/// The contract's words for the order at the opening.
pub fn opening() -> impl TypedValueParser<Value = Opening> {
    let words = PossibleValuesParser::new(Opening::ALL.map(Opening::as_str));
    words.try_map(|word| Opening::parse(&word).ok_or("order or draw"))
}

/// The contract's words for the gate.
pub fn gate() -> impl TypedValueParser<Value = Gate> {
    let words = PossibleValuesParser::new(Gate::ALL.map(Gate::as_str));
    words.try_map(|word| Gate::parse(&word).ok_or("on, shadow or off"))
}

/// `per_second/burst`
pub fn rate(text: &str) -> Result<AdmissionRate, String> {
    let (per_second, burst) = text
        .split_once('/')
        .ok_or("not PER_SECOND/BURST, as in 10/20")?;
    let number = per_second.parse().ok();
    let per_second = number
        .and_then(PerSecond::from_f64)
        .ok_or("PER_SECOND: a number from 0.001 to 1000000")?;
    let burst = burst.parse().ok();
    let burst = burst
        .filter(|burst| (1..=RATE_BURST_MAX).contains(burst))
        .ok_or_else(|| format!("BURST: 1 to {RATE_BURST_MAX}"))?;
    Ok(AdmissionRate {
        per_second_micro: per_second.micro(),
        burst,
    })
}

/// `name[:boost=10m][:absolute][:limit=100][:jump]`
pub fn lane(text: &str) -> Result<LaneSettings, String> {
    let mut parts = text.split(':');
    let name = parts.next().unwrap_or_default();
    let name = LaneName::try_from(name).map_err(|error| format!("{name:?}: {error}"))?;
    let mut lane = LaneSettings::new(name);
    for part in parts {
        match part.split_once('=') {
            None if part == "absolute" => lane.absolute = true,
            None if part == "jump" => lane.jump = true,
            Some(("boost", time)) => {
                let ms = duration::between(0..=BOOST_MS_MAX)(time);
                lane.boost_ms = ms.map_err(|wrong| format!("boost={time}: {wrong}"))?;
            }
            Some(("limit", number)) => {
                let limit = number::between(0..=QUEUE_LIMIT_MAX.into())(number);
                let limit = limit.map_err(|wrong| format!("limit={number}: {wrong}"))?;
                lane.queue_limit = Some(limit);
            }
            _ => {
                return Err(format!(
                    "{part:?} is none of boost=TIME, absolute, limit=N, jump"
                ));
            }
        }
    }
    Ok(lane)
}

/// `06:00 Asia/Taipei` or `24h`
pub fn renew(text: &str) -> Result<Renew, String> {
    let Some((at, zone)) = text.split_once(' ') else {
        if text.contains(':') {
            return Err(format!(
                "{text:?} has no time zone, as '06:00 Asia/Taipei' has"
            ));
        }
        let ms = duration::parse_ms(text).ok();
        let ms = ms.filter(|ms| (RENEW_MS_MIN..=RENEW_MS_MAX).contains(ms));
        return ms.map(|ms| Renew::Every { ms }).ok_or_else(|| {
            "how often, as 24h (1s to 31d), or a time of day with its zone, as '06:00 Asia/Taipei'".to_owned()
        });
    };
    let minute = time::parse_minute(at);
    let minute = minute.ok_or_else(|| format!("{at:?} is not a time of day as 06:00"))?;
    // The cluster checks whether there is such a zone: its nodes may know more of them.
    let zone = ZoneName::new(zone);
    let zone = zone.ok_or_else(|| format!("{text:?} names no time zone as Asia/Taipei"))?;
    Ok(Renew::Daily { minute, zone })
}

/// `2026-11-22T12:00:00+08:00`
pub fn wall_clock(text: &str) -> Result<u64, String> {
    time::parse(text).ok_or_else(|| {
        format!(
            "{text:?} is not a time from 1970 to 9999 with an offset, as 2026-11-22T12:00:00+08:00"
        )
    })
}

/// `100,10,3,1`, in any order. The cluster checks how many they are.
pub fn positions(text: &str) -> Result<Vec<u32>, String> {
    let positions = text
        .split(',')
        .map(number::between(1..=POSITION_EVENT_MAX.into()));
    let positions: Result<Vec<u32>, _> = positions.collect();
    let wrong = |range| format!("not positions, as in 100,10,3,1: each {range}");
    let mut positions = positions.map_err(wrong)?;
    positions.sort_unstable_by(|a, b| b.cmp(a));
    Ok(positions)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn no_seats_is_a_wish_to_pause() {
        assert_eq!(seats("7"), Ok(7));
        assert!(
            seats("0")
                .unwrap_err()
                .ends_with("to stop admitting: --phase paused")
        );
        for bad in ["-1", "1000001"] {
            assert_eq!(seats(bad).unwrap_err(), "must be 1 to 1000000");
        }
    }

    #[test]
    fn labels_need_a_name() {
        assert!(label("=x").is_err());
        assert!(label("x").is_err());
        assert_eq!(label("x="), Ok(("x".to_owned(), String::new())));
    }

    #[test]
    fn rates_are_whole_millionths() {
        let fast = rate("10/20").unwrap();
        assert_eq!((fast.per_second_micro, fast.burst), (10_000_000, 20));
        assert_eq!(rate("0.0015/1").unwrap().per_second_micro, 1_500);
        for bad in [
            "10", "10/", "/5", "x/5", "0/5", "-1/5", "10/-1", "20/0", "NaN/1", "1e9/1",
        ] {
            assert!(rate(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn lanes_have_a_name_and_what_else_is_said() {
        let plain = lane("normal").unwrap();
        assert_eq!(plain, LaneSettings::new("normal".parse().unwrap()));
        let vip = lane("vip:boost=1h30m:absolute:limit=100:jump").unwrap();
        assert_eq!((vip.boost_ms, vip.absolute), (5_400_000, true));
        assert!(vip.jump);
        assert_eq!(vip.queue_limit, Some(100));
        assert_eq!(lane("x:boost=250ms").unwrap().boost_ms, 250);
        for bad in [
            "",
            "a b",
            "x:",
            "x:fast",
            "x:boost",
            "x:boost=10",
            "x:boost=10us",
            "x:boost=8d",
            "x:limit=10000001",
            "x:limit=",
            "x:limit=-1",
            "x:absolute=yes",
        ] {
            assert!(lane(bad).is_err(), "{bad}");
        }
    }
}
