//! What Envoy asks, as checks of the SDK.

use std::collections::BTreeMap;

use nowserving_client::limits::{
    COUNTER_KEY_BYTES_MAX, Check, DESCRIPTORS_MAX, Descriptor, ENTRIES_MAX, ENTRY_KEY_BYTES_MAX,
    Entry, counter_key_bytes,
};

use crate::pb::{RateLimitDescriptor, RateLimitRequest};

/// How long values are at most: the first length by which the descriptor fits a counter's key. With the last one values
/// never are too long.
const VALUE_BYTES: [usize; 8] = [1_024, 768, 512, 384, 256, 192, 128, 96];

/// One question to the cluster, and which of the request's descriptors it is about.
#[derive(Debug, PartialEq, Eq)]
pub struct Part {
    pub check: Check,
    /// Their places in the request.
    pub places: Vec<usize>,
}

/// The questions of a request: one, unless its descriptors have different numbers of hits or are more than the cluster
/// takes at once. The error names the field.
pub fn parts(domain: &str, request: &RateLimitRequest) -> Result<Vec<Part>, String> {
    if request.domain.is_empty() {
        return Err("domain: must not be empty".to_owned());
    }
    if request.descriptors.is_empty() {
        return Err("descriptors: at least one".to_owned());
    }
    let mut by_hits: BTreeMap<u32, Vec<(usize, Descriptor)>> = BTreeMap::new();
    for (place, descriptor) in request.descriptors.iter().enumerate() {
        let entries = entries(domain, place, descriptor)?;
        let hits = hits(request, descriptor);
        by_hits.entry(hits).or_default().push((place, entries));
    }
    let mut parts = Vec::new();
    for (hits, descriptors) in by_hits {
        for some in descriptors.chunks(DESCRIPTORS_MAX) {
            let (places, descriptors) = some.iter().cloned().unzip();
            let mut check = Check::new(descriptors);
            check.hits = (hits > 1).then_some(hits);
            check.dry_run = hits == 0;
            parts.push(Part { check, places });
        }
    }
    Ok(parts)
}

/// 0 in the request is Envoy's way to say nothing; 0 in the descriptor only asks whether one more would pass: what it costs
/// is reported after the response. Hits that are to be given back are not, and must not be counted either.
fn hits(request: &RateLimitRequest, descriptor: &RateLimitDescriptor) -> u32 {
    match descriptor.hits_addend {
        _ if descriptor.is_negative_hits => 0,
        Some(hits) => u32::try_from(hits).unwrap_or(u32::MAX),
        None => request.hits_addend.max(1),
    }
}

fn entries(
    domain: &str,
    place: usize,
    descriptor: &RateLimitDescriptor,
) -> Result<Descriptor, String> {
    let entries = &descriptor.entries;
    if !(1..=ENTRIES_MAX).contains(&entries.len()) {
        return Err(format!(
            "descriptors[{place}].entries: 1 to {ENTRIES_MAX} of them"
        ));
    }
    for (nth, entry) in entries.iter().enumerate() {
        if !(1..=ENTRY_KEY_BYTES_MAX).contains(&entry.key.len()) {
            return Err(format!(
                "descriptors[{place}].entries[{nth}].key: 1 to {ENTRY_KEY_BYTES_MAX} bytes"
            ));
        }
    }
    let with = |value_bytes_max| {
        let entries = entries.iter();
        let short = entries
            .map(|entry| Entry::shortened_to(entry.key.clone(), &entry.value, value_bytes_max));
        short.collect::<Descriptor>()
    };
    let mut shorter = VALUE_BYTES.iter().map(|bytes| with(*bytes));
    let fits = shorter.find(|descriptor| fits(domain, descriptor));
    fits.ok_or_else(|| format!("descriptors[{place}]: its keys are too long or too many"))
}

fn fits(domain: &str, descriptor: &[Entry]) -> bool {
    counter_key_bytes(domain, descriptor) <= COUNTER_KEY_BYTES_MAX
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::pb;

    fn descriptor(entries: &[(&str, &[u8])]) -> RateLimitDescriptor {
        let entries = entries.iter().map(|(key, value)| pb::Entry {
            key: (*key).to_owned(),
            value: value.to_vec(),
        });
        RateLimitDescriptor {
            entries: entries.collect(),
            limit: None,
            hits_addend: None,
            is_negative_hits: false,
        }
    }

    fn request(descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
        RateLimitRequest {
            domain: "shop".to_owned(),
            descriptors,
            hits_addend: 0,
        }
    }

    fn only(request: &RateLimitRequest) -> Check {
        let [part] = parts("shop", request).unwrap().try_into().unwrap();
        let all: Vec<usize> = (0..request.descriptors.len()).collect();
        assert_eq!(part.places, all);
        part.check.check().unwrap();
        part.check
    }

    #[test]
    fn descriptors_and_hits() {
        let mut asked = request(vec![
            descriptor(&[("ip", b"1.2.3.4")]),
            descriptor(&[("plan", b"free"), ("path", b"")]),
        ]);
        let expected = Check::new(vec![
            vec![Entry::new("ip", "1.2.3.4")],
            vec![Entry::new("plan", "free"), Entry::new("path", "")],
        ]);
        assert_eq!(only(&asked), expected);
        asked.hits_addend = 5;
        let hits = Some(5);
        assert_eq!(only(&asked), Check { hits, ..expected });
    }

    #[test]
    fn descriptors_with_hits_of_their_own_are_asked_apart() {
        let mut asked = request(vec![
            descriptor(&[("a", b"")]),
            descriptor(&[("b", b"")]),
            descriptor(&[("c", b"")]),
        ]);
        asked.descriptors[1].hits_addend = Some(u64::MAX);
        asked.descriptors[2].hits_addend = Some(1);
        let parts = parts("shop", &asked).unwrap();
        let parts = parts.iter().map(|it| (it.check.hits(), it.places.clone()));
        let parts: Vec<_> = parts.collect();
        assert_eq!(parts, [(1, vec![0, 2]), (u32::MAX, vec![1])]);
        asked.descriptors.truncate(1);
        asked.descriptors[0].hits_addend = Some(0);
        let only_asks = only(&asked);
        assert_eq!((only_asks.hits(), only_asks.dry_run), (1, true));
        asked.descriptors[0].hits_addend = Some(500);
        asked.descriptors[0].is_negative_hits = true;
        assert_eq!(only(&asked), only_asks, "a refund is not charged");
    }

    #[test]
    fn more_descriptors_than_the_cluster_takes() {
        let asked = request(vec![descriptor(&[("a", b"b")]); 33]);
        let parts = parts("shop", &asked).unwrap();
        let places = parts.iter().map(|it| it.places.len()).collect::<Vec<_>>();
        assert_eq!(places, [16, 16, 1]);
        let places: Vec<usize> = parts.into_iter().flat_map(|it| it.places).collect();
        assert_eq!(places, (0..33).collect::<Vec<_>>());
    }

    #[test]
    fn long_values_and_values_that_are_no_text_are_still_limited() {
        let value = |value: &[u8]| {
            let check = only(&request(vec![descriptor(&[("path", value)])]));
            check.descriptors[0][0].value.clone()
        };
        let long = [b"/search/".as_slice(), &[b'x'; 2_000]].concat();
        let shortened = value(&long);
        assert!(shortened.starts_with("/search/xxx"));
        let other = [long.as_slice(), b"y"].concat();
        assert_ne!(value(&other), shortened, "a counter of its own");
        let export = [long.as_slice(), b"/export"].concat();
        assert!(value(&export).ends_with("/export"), "patterns match ends");
        let bytes = value(b"/a\xff");
        assert!(bytes.starts_with("/a\u{fffd}#"), "{bytes}");
        assert_ne!(value(b"/a\xfe"), bytes);
    }

    /// Other long values of its descriptor are shortened, and not it.
    #[test]
    fn a_short_value_stays_beside_long_ones() {
        let path =
            b"/api/v1/accounts/transactions/7/comments/of/this/year/and/of/all/the/years/before/it";
        let (one, two) = ([b'a'; 1_500], [b'b'; 1_500]);
        let entries: [(&str, &[u8]); 3] = [("path", path), ("agent", &one), ("referer", &two)];
        let check = only(&request(vec![descriptor(&entries)]));
        assert_eq!(check.descriptors[0][0].value.as_bytes(), path);
        let long = &check.descriptors[0][1].value;
        assert!(long.len() > 512 && long.ends_with('a'), "{long}");
    }

    #[test]
    fn many_long_values_fit_one_counter() {
        let key = ["k"; 16];
        let many = key.map(|key| (key, [b'v'; 1_000].as_slice().to_vec()));
        let many: Vec<_> = many.iter().map(|(k, v)| (*k, v.as_slice())).collect();
        let check = only(&request(vec![descriptor(&many)]));
        assert!(fits("shop", &check.descriptors[0]));
        assert_eq!(check.descriptors[0][15].value.len(), 96);
    }

    /// Each descriptor is asked about once, and the cluster takes what is asked.
    #[test]
    fn fuzz_a_request() {
        use prost::Message as _;

        let mut large = request(vec![descriptor(&[("path", &[b'x'; 2_000])]); 20]);
        large.descriptors[3].hits_addend = Some(7);
        large.descriptors[4].is_negative_hits = true;
        let small = request(vec![descriptor(&[("ip", b"1.2.3.4"), ("path", b"")])]);
        let seeds = [small, large].map(|request| request.encode_to_vec());
        nowserving_testkit::target!(seeds.into(), |bytes| {
            let Ok(request) = RateLimitRequest::decode(bytes) else {
                return;
            };
            if let Ok(parts) = parts("shop", &request) {
                let mut places: Vec<usize> = Vec::new();
                for part in parts {
                    part.check.check().unwrap();
                    assert_eq!(part.check.descriptors.len(), part.places.len());
                    places.extend(part.places);
                }
                places.sort();
                assert_eq!(places, (0..request.descriptors.len()).collect::<Vec<_>>());
            }
        });
    }

    #[test]
    fn what_is_wrong_is_named() {
        let long = "k".repeat(257);
        let keys: Vec<String> = (0..16)
            .map(|nth| format!("{nth}{}", "k".repeat(200)))
            .collect();
        let keys: Vec<(&str, &[u8])> = keys
            .iter()
            .map(|key| (key.as_str(), b"".as_slice()))
            .collect();
        for (descriptors, names) in [
            (vec![], "descriptors: "),
            (vec![descriptor(&[])], "descriptors[0].entries: "),
            (
                vec![descriptor(&[("a", b"")]), descriptor(&[("", b"")])],
                "descriptors[1].entries[0].key: ",
            ),
            (
                vec![descriptor(&[(&long, b"")])],
                "descriptors[0].entries[0].key: ",
            ),
            (vec![descriptor(&keys)], "descriptors[0]: "),
        ] {
            let error = parts("shop", &request(descriptors)).unwrap_err();
            assert!(error.starts_with(names), "{error}");
        }
        let mut nowhere = request(vec![descriptor(&[("a", b"")])]);
        nowhere.domain.clear();
        assert!(parts("", &nowhere).unwrap_err().starts_with("domain: "));
    }
}
