//! The envelope in which nodes send each other frames: sealed with the cluster's
//! key, and opened only if the seal holds, so that no stranger's bytes reach a decoder.
//!
//! ```text
//! offset  bytes
//!      0      4  magic "NSFR"
//!      4      1  format, 1
//!      5      1  always 1
//!      6      2  zero
//!      8     32  keyed BLAKE3 over bytes 0..8 and the payload
//!     40      …  the payload: a protobuf `Frame`
//! ```
//!
//! The seal shows that a member of the cluster made the frame. It does not show
//! that the frame is new: `boots`, `starts` and `seq` distinguish doubled and old ones,
//! and Raft tolerates messages that arrive twice or late.
//!
//! It does not name the key: while the key is rotated, the receiver tries both ([`FrameKeys`]).

use std::fmt;

use bytes::Bytes;
use nowserving_protocol::keys::ClusterKey;
use prost::Message;

pub use crate::pb::{
    Candidate, ClosedConnection, Existing, Founder, Frame, FramePart, LaggingMember, LinkAnswer,
    LinkHello, LoadedKey, NodeFacts, PeerDisk, ShardMessage, SnapshotChunk, SnapshotRequest,
    StateHash, Verdict, Welcome,
};

/// The bytes that the envelope adds to a frame.
pub const OVERHEAD_BYTES: usize = HEADER_BYTES + MAC_BYTES;

const HEADER_BYTES: usize = 8;
const MAC_BYTES: usize = 32;
const CONTEXT: &str = "nowserving cluster key v1: frames";
const JOIN_CONTEXT: &str = "nowserving cluster key v1: joining";
const LINK_CONTEXT: &str = "nowserving cluster key v1: direct links";
const LINK_ANSWER_CONTEXT: &str = "nowserving cluster key v1: answers to direct links";
const MAGIC: &[u8; 4] = b"NSFR";
const FORMAT: u8 = 1;
const KEY_ID: u8 = 1;
const HEADER: [u8; HEADER_BYTES] = [MAGIC[0], MAGIC[1], MAGIC[2], MAGIC[3], FORMAT, KEY_ID, 0, 0];

/// The key that seals frames.
#[derive(Clone)]
pub struct FrameKey([u8; 32]);

impl FrameKey {
    /// The key of a cluster's frames.
    pub fn of(cluster: &ClusterKey) -> FrameKey {
        FrameKey(cluster.derive(CONTEXT))
    }

    /// The key of the messages between a cluster and a node that asks to be added: one is never taken for a
    /// frame.
    pub fn for_joining(cluster: &ClusterKey) -> FrameKey {
        FrameKey(cluster.derive(JOIN_CONTEXT))
    }

    /// The key of what opens a direct link.
    pub fn for_links(cluster: &ClusterKey) -> FrameKey {
        FrameKey(cluster.derive(LINK_CONTEXT))
    }

    /// The key of the answers to that: neither is ever taken for the other.
    pub fn for_link_answers(cluster: &ClusterKey) -> FrameKey {
        FrameKey(cluster.derive(LINK_ANSWER_CONTEXT))
    }

    fn mac(&self, header: &[u8], payload: &[u8]) -> blake3::Hash {
        blake3::Hasher::new_keyed(&self.0)
            .update(header)
            .update(payload)
            .finalize()
    }
}

impl fmt::Debug for FrameKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FrameKey(…)")
    }
}

/// The keys of frames that a node uses at one time.
#[derive(Clone, Debug)]
pub struct FrameKeys {
    current: FrameKey,
    other: Option<FrameKey>,
}

impl FrameKeys {
    /// Keys that seal with `current`, and open what is sealed with either.
    #[must_use]
    pub fn new(current: FrameKey, other: Option<FrameKey>) -> FrameKeys {
        FrameKeys { current, other }
    }

    /// The key that seals.
    #[must_use]
    pub fn current(&self) -> &FrameKey {
        &self.current
    }

    /// The keys that open.
    pub fn each(&self) -> impl Iterator<Item = &FrameKey> {
        std::iter::once(&self.current).chain(&self.other)
    }

    /// As [`open`], and returns the key, too.
    ///
    /// # Errors
    /// As [`open`].
    pub fn open<M: Message + Default>(&self, sealed: Bytes) -> Result<(M, &FrameKey), FrameError> {
        let opened = open(&self.current, sealed.clone()).map(|it| (it, &self.current));
        match (&self.other, opened) {
            (Some(other), Err(FrameError::Seal)) => open(other, sealed).map(|it| (it, other)),
            (_, opened) => opened,
        }
    }
}

/// Why a frame was not opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Shorter than an envelope can be.
    #[error("a frame of {0} bytes is shorter than its envelope")]
    Short(usize),
    /// Its first bytes are not a frame's.
    #[error("not a frame: its first bytes are not a frame's")]
    Magic,
    /// Of a build with another format.
    #[error("a frame of format {0}, and this build reads {FORMAT}")]
    Format(u8),
    /// Sealed with a key that this build does not know, or with bytes set that it does not know.
    #[error("a frame with the key id and flags {0:?}, and this build reads [{KEY_ID}, 0, 0]")]
    Key([u8; 3]),
    /// Another cluster's key, or altered on the way.
    #[error("the frame's seal does not hold: another cluster's key, or it was altered")]
    Seal,
    /// Sealed by a member, but not a frame that this build can read.
    #[error("a sealed frame does not decode: {0}")]
    Decode(String),
}

/// Seals a frame for the wire.
pub fn seal(key: &FrameKey, frame: &impl Message) -> Vec<u8> {
    let mut sealed = Vec::with_capacity(OVERHEAD_BYTES + frame.encoded_len());
    sealed.extend_from_slice(&HEADER);
    sealed.extend_from_slice(&[0; MAC_BYTES]);
    frame.encode_raw(&mut sealed);
    let mac = key.mac(&HEADER, &sealed[OVERHEAD_BYTES..]);
    sealed[HEADER_BYTES..OVERHEAD_BYTES].copy_from_slice(mac.as_bytes());
    sealed
}

/// Opens a sealed frame: checks the seal first and decodes only then. The Raft
/// messages in it share `sealed`'s memory.
///
/// The caller checks that `cluster`, `from`, `to`, `disk_id`, `boots` and `starts` are those
/// expected.
pub fn open<M: Message + Default>(key: &FrameKey, sealed: Bytes) -> Result<M, FrameError> {
    let Some((header, rest)) = sealed.split_first_chunk::<HEADER_BYTES>() else {
        return Err(FrameError::Short(sealed.len()));
    };
    let Some((mac, payload)) = rest.split_first_chunk::<MAC_BYTES>() else {
        return Err(FrameError::Short(sealed.len()));
    };
    check_header(header)?;
    // blake3::Hash compares in constant time.
    if key.mac(header, payload) != blake3::Hash::from_bytes(*mac) {
        return Err(FrameError::Seal);
    }
    M::decode(sealed.slice(OVERHEAD_BYTES..)).map_err(|error| FrameError::Decode(error.to_string()))
}

fn check_header(header: &[u8; HEADER_BYTES]) -> Result<(), FrameError> {
    let [m1, m2, m3, m4, format, key @ ..] = *header;
    if [m1, m2, m3, m4] != *MAGIC {
        return Err(FrameError::Magic);
    }
    if format != FORMAT {
        return Err(FrameError::Format(format));
    }
    match key {
        [KEY_ID, 0, 0] => Ok(()),
        other => Err(FrameError::Key(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame with every field set.
    fn frame() -> Frame {
        let mut frame = first_frame();
        let facts = frame.facts.get_or_insert_default();
        facts.refuses_snapshots = 2;
        facts.entry_format = 6;
        facts.key_id = Some(0);
        facts.keys = vec![LoadedKey {
            id: 2,
            fingerprint: u64::MAX,
        }];
        frame.lagging = vec![LaggingMember {
            node: 3,
            shards: vec![0, 15],
            snapshot_sent: 5,
            snapshot_bytes: 1 << 40,
        }];
        frame.verdicts[0].disk = true;
        frame.cluster_id = u64::MAX;
        frame.disks.push(PeerDisk {
            node: 3,
            disk_id: u64::MAX,
            boots: 4,
            start: 1,
        });
        frame
    }

    #[test]
    fn round_trip() {
        let key = FrameKey([7; 32]);
        assert_eq!(open(&key, seal(&key, &frame()).into()), Ok(frame()));
        let empty = Frame::default();
        let sealed = seal(&key, &empty);
        assert_eq!(sealed.len(), OVERHEAD_BYTES);
        assert_eq!(open(&key, sealed.into()), Ok(empty));
        assert!(open::<Welcome>(&FrameKey([8; 32]), seal(&key, &frame()).into()).is_err());
    }

    #[test]
    fn while_the_key_is_rotated_frames_of_both_keys_are_opened() {
        let [old, new, strange] = [7, 8, 9].map(|it| FrameKey([it; 32]));
        let both = FrameKeys::new(new.clone(), Some(old.clone()));
        let alone = FrameKeys::new(new.clone(), None);
        let open = |keys: &FrameKeys, key: &FrameKey| {
            let opened = keys.open::<Frame>(seal(key, &frame()).into());
            opened.map(|(opened, with)| (opened == frame(), with.0))
        };
        assert_eq!(open(&both, &new), Ok((true, [8; 32])));
        assert_eq!(open(&both, &old), Ok((true, [7; 32])));
        assert_eq!(open(&both, &strange), Err(FrameError::Seal));
        assert_eq!(open(&alone, &new), Ok((true, [8; 32])));
        assert_eq!(open(&alone, &old), Err(FrameError::Seal));
    }

    #[test]
    fn every_altered_bit_and_every_cut_is_refused() {
        let key = FrameKey([7; 32]);
        let sealed = seal(&key, &frame());
        for bit in 0..sealed.len() * 8 {
            let mut altered = sealed.clone();
            altered[bit / 8] ^= 1 << (bit % 8);
            let expected = match bit / 8 {
                0..4 => FrameError::Magic,
                4 => FrameError::Format(altered[4]),
                5..8 => FrameError::Key([altered[5], altered[6], altered[7]]),
                _ => FrameError::Seal,
            };
            assert_eq!(
                open::<Frame>(&key, altered.into()),
                Err(expected),
                "bit {bit}"
            );
        }
        for length in 0..sealed.len() {
            assert!(
                open::<Frame>(&key, Bytes::copy_from_slice(&sealed[..length])).is_err(),
                "cut at {length}"
            );
        }
        let mut longer = sealed;
        longer.push(0);
        assert_eq!(open::<Frame>(&key, longer.into()), Err(FrameError::Seal));
    }

    /// A frame with the fields that frames of format 1 had first; later ones have their defaults.
    fn first_frame() -> Frame {
        Frame {
            cluster: "prod".to_owned(),
            cluster_id: 0,
            from: 1,
            to: 2,
            disk_id: 9,
            boots: 77,
            starts: vec![u64::MAX, 1],
            seq: 9,
            facts: Some(NodeFacts {
                client_reachable: true,
                metrics_addr: "127.0.0.1:9100".to_owned(),
                version: "0.1.0".to_owned(),
                shards: 16,
                prefix: "nowserving".to_owned(),
                nodes: vec![1, 2, 3],
                in_touch: true,
                clock_us: 7,
                disk_full: true,
                members_version: 3,
                election_ms: 750,
                connection: 3,
                ..NodeFacts::default()
            }),
            verdicts: vec![Verdict {
                start: 5,
                refused: "another disk".to_owned(),
                removed: true,
                ..Verdict::default()
            }],
            state_hashes: vec![StateHash {
                shard: 3,
                index: 4,
                hash: vec![5; 32].into(),
                format: 3,
            }],
            members: Bytes::from_static(b"members"),
            closed: vec![ClosedConnection {
                node: 3,
                start: 8,
                number: 2,
            }],
            disks: Vec::new(),
            messages: vec![ShardMessage {
                shard: 15,
                raft: Bytes::from_static(b"abc"),
            }],
            snapshot_request: Some(SnapshotRequest {
                shard: 3,
                digest: vec![6; 32].into(),
                offset: 1 << 40,
                refused: true,
            }),
            snapshot_chunk: Some(SnapshotChunk {
                shard: 4,
                digest: vec![7; 32].into(),
                offset: 8,
                data: Bytes::from_static(b"part"),
            }),
            lagging: Vec::new(),
            part: None,
        }
    }

    #[test]
    fn frames_of_format_1() {
        let golden = |name, written: &[u8]| {
            nowserving_testkit::golden::bytes(env!("CARGO_MANIFEST_DIR"), name, written)
        };
        let key = FrameKey::of(&ClusterKey::new([7; 32]));
        let kept = golden("frame-1.bin", &seal(&key, &first_frame()));
        assert_eq!(open(&key, kept.into()), Ok(first_frame()));

        let key = FrameKey::for_joining(&ClusterKey::new([7; 32]));
        let candidate = Candidate {
            disk_id: 5,
            number: 3,
            reason: "another disk".to_owned(),
            version: "0.1.0".to_owned(),
        };
        let kept = golden("candidate-1.bin", &seal(&key, &candidate));
        assert_eq!(open(&key, kept.into()), Ok(candidate));
        let welcome = Welcome {
            disk_id: 5,
            id: 4,
            cluster: "prod".to_owned(),
            shards: 16,
            nodes: vec![1, 2, 3],
            members: Bytes::from_static(b"members"),
        };
        let kept = golden("welcome-1.bin", &seal(&key, &welcome));
        assert_eq!(open(&key, kept.into()), Ok(welcome));
        let founder = Founder {
            disk_id: 5,
            id: 2,
            cluster: "prod".to_owned(),
            nodes: vec![1, 2, 3],
            cluster_id: 0,
        };
        let kept = golden("founder-1.bin", &seal(&key, &founder));
        assert_eq!(open(&key, kept.into()), Ok(founder));
        let existing = Existing {
            cluster: "prod".to_owned(),
            refused: "node 2 was here before, with another disk".to_owned(),
            members: Bytes::from_static(b"members"),
            disk_id: 5,
            from: 1,
        };
        let kept = golden("existing-1.bin", &seal(&key, &existing));
        assert_eq!(open(&key, kept.into()), Ok(existing));
        let key = FrameKey::for_links(&ClusterKey::new([7; 32]));
        let hello = LinkHello {
            cluster: "prod".to_owned(),
            from: 1,
            to: 2,
            nonce: vec![3; 16].into(),
            answer_nonce: vec![4; 16].into(),
        };
        let kept = golden("link-hello-1.bin", &seal(&key, &hello));
        assert_eq!(open(&key, kept.into()), Ok(hello));
        let key = FrameKey::for_link_answers(&ClusterKey::new([7; 32]));
        let answer = LinkAnswer {
            cluster: "prod".to_owned(),
            from: 1,
            to: 2,
            answer_nonce: vec![4; 16].into(),
        };
        let kept = golden("link-answer-1.bin", &seal(&key, &answer));
        assert_eq!(open(&key, kept.into()), Ok(answer));
    }

    #[test]
    fn a_frame_of_another_format_is_refused_by_its_number() {
        let key = FrameKey([7; 32]);
        let mut sealed = seal(&key, &frame());
        sealed[4] = 2;
        let opened = open::<Frame>(&key, sealed.into()).map_err(|error| error.to_string());
        let clear = "a frame of format 2, and this build reads 1";
        assert_eq!(opened, Err(clear.to_owned()));
    }

    const KEPT: &[u8] = include_bytes!("../tests/golden/frame-1.bin");

    /// Anybody may send: only what was sealed is opened.
    #[test]
    fn fuzz_an_envelope() {
        nowserving_testkit::target!(vec![KEPT.to_vec()], |bytes| {
            let key = FrameKey::of(&ClusterKey::new([7; 32]));
            if open::<Frame>(&key, Bytes::copy_from_slice(bytes)).is_ok() {
                assert_eq!(bytes, KEPT);
            }
        });
    }

    /// What is opened can be sealed again, and means the same.
    fn opened<M: Message + Default + PartialEq + fmt::Debug>(payload: &[u8]) {
        let key = FrameKey([7; 32]);
        let mac = key.mac(&HEADER, payload);
        let sealed = [&HEADER[..], mac.as_bytes(), payload].concat();
        if let Ok(read) = open::<M>(&key, sealed.into()) {
            assert_eq!(open(&key, seal(&key, &read).into()), Ok(read));
        }
    }

    macro_rules! sealed_by_a_member {
        ($($name:ident: $type:ty = $kept:literal;)*) => {$(
            #[test]
            fn $name() {
                let seeds = vec![include_bytes!($kept)[OVERHEAD_BYTES..].to_vec()];
                nowserving_testkit::target!(seeds, opened::<$type>);
            }
        )*};
    }

    sealed_by_a_member! {
        fuzz_a_sealed_frame: Frame = "../tests/golden/frame-1.bin";
        fuzz_a_candidate: Candidate = "../tests/golden/candidate-1.bin";
        fuzz_a_welcome: Welcome = "../tests/golden/welcome-1.bin";
        fuzz_a_founder: Founder = "../tests/golden/founder-1.bin";
        fuzz_an_existing_cluster: Existing = "../tests/golden/existing-1.bin";
        fuzz_a_hello: LinkHello = "../tests/golden/link-hello-1.bin";
        fuzz_an_answer_to_a_hello: LinkAnswer = "../tests/golden/link-answer-1.bin";
    }

    #[test]
    fn another_key_is_refused_before_anything_is_decoded() {
        let garbage_sealed_elsewhere = {
            let mut sealed = HEADER.to_vec();
            let payload = [0xff; 10];
            sealed.extend_from_slice(FrameKey([8; 32]).mac(&HEADER, &payload).as_bytes());
            sealed.extend_from_slice(&payload);
            Bytes::from(sealed)
        };
        assert_eq!(
            open::<Frame>(&FrameKey([7; 32]), garbage_sealed_elsewhere.clone()),
            Err(FrameError::Seal)
        );
        assert!(matches!(
            open::<Frame>(&FrameKey([8; 32]), garbage_sealed_elsewhere),
            Err(FrameError::Decode(_))
        ));
    }

    #[test]
    fn the_key_is_derived_and_not_printed() {
        let cluster = ClusterKey::new([0xab; 32]);
        let key = FrameKey::of(&cluster);
        assert_ne!(key.0, [0xab; 32]);
        assert_eq!(format!("{key:?}"), "FrameKey(…)");
    }
}
