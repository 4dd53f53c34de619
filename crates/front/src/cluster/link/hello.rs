//! How a link begins.
//!
//! ```text
//! acceptor:  "NSPL", the version, three zero bytes, a random number of 16 bytes
//! opener:    its length in four bytes, a sealed `LinkHello` with that number and one of its own
//! acceptor:  its length in four bytes, a sealed `LinkAnswer` with the opener's number
//! ```
//!
//! The acceptor's number is new for each connection, so a recorded hello opens nothing. The opener checks the answer: who
//! has taken over a peer's address could otherwise swallow frames, and they would not go over NATS.

use bytes::Bytes;
use nowserving_engine::envelope::{LinkAnswer, LinkHello, seal};

use super::{LinkError, LinkKeys};
use crate::cluster::peers::PeerList;

pub const VERSION: u8 = 1;
/// The bytes of an acceptor's greeting.
pub const GREETING_BYTES: usize = 24;
/// A hello or an answer has at most so many: they come before anybody is authenticated.
pub const HELLO_BYTES_MAX: usize = 1_024;

const MAGIC: &[u8; 4] = b"NSPL";
const NONCE_BYTES: usize = 16;

/// A random number.
pub type Nonce = [u8; NONCE_BYTES];

/// The opener's side of a handshake.
#[derive(Debug, Clone)]
pub struct Opener {
    pub cluster: String,
    pub me: u64,
    pub to: u64,
    /// New for each connection.
    pub nonce: Nonce,
}

/// The acceptor's side of a handshake.
#[derive(Debug, Clone)]
pub struct Acceptor {
    pub cluster: String,
    pub me: u64,
    /// New for each connection.
    pub nonce: Nonce,
}

impl Opener {
    /// The hello to an acceptor with this greeting, sealed.
    ///
    /// # Errors
    /// It is not the greeting of a node that this build can speak with.
    pub fn hello(
        &self,
        greeting: &[u8; GREETING_BYTES],
        keys: &LinkKeys,
    ) -> Result<Bytes, LinkError> {
        let nonce = read_greeting(greeting)?;
        let hello = LinkHello {
            cluster: self.cluster.clone(),
            from: self.me,
            to: self.to,
            nonce: Bytes::copy_from_slice(&nonce),
            answer_nonce: Bytes::copy_from_slice(&self.nonce),
        };
        Ok(seal(keys.hellos.current(), &hello).into())
    }

    /// Checks the answer: the link is open.
    ///
    /// # Errors
    /// The acceptor is not the node that is meant, in its answer to this very hello.
    pub fn check(&self, answer: Bytes, keys: &LinkKeys) -> Result<(), LinkError> {
        let (answer, _) = keys.answers.open::<LinkAnswer>(answer)?;
        let expected = LinkAnswer {
            cluster: self.cluster.clone(),
            from: self.me,
            to: self.to,
            answer_nonce: Bytes::copy_from_slice(&self.nonce),
        };
        match answer == expected {
            true => Ok(()),
            false => Err(LinkError::NotMeant("is the answer to another hello".into())),
        }
    }
}

impl Acceptor {
    /// The first bytes of the connection.
    #[must_use]
    pub fn greeting(&self) -> [u8; GREETING_BYTES] {
        let mut greeting = [0; GREETING_BYTES];
        let (head, nonce) = greeting.split_at_mut(GREETING_BYTES - NONCE_BYTES);
        head[..MAGIC.len()].copy_from_slice(MAGIC);
        head[MAGIC.len()] = VERSION;
        nonce.copy_from_slice(&self.nonce);
        greeting
    }

    /// Takes a sealed hello. Returns the node that opens the link, and the sealed answer to it.
    ///
    /// # Errors
    /// It is not by a peer, or not meant for this node and this connection.
    pub fn accept(
        &self,
        hello: Bytes,
        keys: &LinkKeys,
        peers: &PeerList,
    ) -> Result<(u64, Bytes), LinkError> {
        let (hello, _) = keys.hellos.open::<LinkHello>(hello)?;
        let refuse = |why: String| Err(LinkError::NotMeant(why));
        if hello.cluster != self.cluster {
            return refuse(format!("is of cluster {:?}", hello.cluster));
        }
        if hello.to != self.me {
            return refuse(format!("is meant for node {}", hello.to));
        }
        if hello.nonce != self.nonce[..] {
            return refuse("is of another connection".to_owned());
        }
        if hello.from == self.me || !peers.ids.contains(&hello.from) {
            return refuse(format!("is of node {}, which is no peer", hello.from));
        }
        let answer = LinkAnswer {
            cluster: hello.cluster,
            from: hello.from,
            to: hello.to,
            answer_nonce: hello.answer_nonce,
        };
        Ok((hello.from, seal(keys.answers.current(), &answer).into()))
    }
}

fn read_greeting(greeting: &[u8; GREETING_BYTES]) -> Result<Nonce, LinkError> {
    let [m1, m2, m3, m4, version, _, _, _, nonce @ ..] = *greeting;
    if [m1, m2, m3, m4] != *MAGIC {
        return Err(LinkError::Greeting);
    }
    if version != VERSION {
        return Err(LinkError::Version(version));
    }
    Ok(nonce)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use nowserving_protocol::keys::{ClusterKey, KeyRing};

    use super::*;
    use crate::keys::InUse;

    fn keys(secret: u8) -> InUse {
        let ring = KeyRing::new(&ClusterKey::new([secret; 32]).into(), None);
        InUse::new(ring.unwrap(), 0)
    }

    fn opener() -> Opener {
        Opener {
            cluster: "prod".to_owned(),
            me: 1,
            to: 2,
            nonce: [4; NONCE_BYTES],
        }
    }

    fn acceptor() -> Acceptor {
        Acceptor {
            cluster: "prod".to_owned(),
            me: 2,
            nonce: [3; NONCE_BYTES],
        }
    }

    fn peers() -> PeerList {
        PeerList {
            ids: [1, 3].into(),
            ..PeerList::default()
        }
    }

    #[test]
    fn both_sides_prove_that_they_have_the_key() {
        let keys = keys(7);
        let hello = opener().hello(&acceptor().greeting(), &keys.links);
        let accepted = acceptor().accept(hello.unwrap(), &keys.links, &peers());
        let (from, answer) = accepted.unwrap();
        assert_eq!(from, 1);
        assert_eq!(opener().check(answer, &keys.links), Ok(()));
    }

    #[test]
    fn what_is_not_meant_for_this_connection_is_refused() {
        let keys = keys(7);
        let accept = |opener: Opener, acceptor: Acceptor, from: Acceptor| {
            let hello = opener.hello(&from.greeting(), &keys.links).unwrap();
            acceptor.accept(hello, &keys.links, &peers()).unwrap_err()
        };
        let other_nonce = Acceptor {
            nonce: [5; NONCE_BYTES],
            ..acceptor()
        };
        let to_other = Opener { to: 3, ..opener() };
        let stranger = Opener { me: 4, ..opener() };
        let itself = Opener { me: 2, ..opener() };
        let elsewhere = Opener {
            cluster: "test".to_owned(),
            ..opener()
        };
        for (error, named) in [
            (
                accept(opener(), acceptor(), other_nonce),
                "another connection",
            ),
            (accept(to_other, acceptor(), acceptor()), "meant for node 3"),
            (accept(stranger, acceptor(), acceptor()), "no peer"),
            (accept(itself, acceptor(), acceptor()), "no peer"),
            (accept(elsewhere, acceptor(), acceptor()), "\"test\""),
        ] {
            assert!(error.to_string().contains(named), "{error}");
        }
    }

    #[test]
    fn another_key_is_refused_by_both_sides() {
        let (ours, theirs) = (keys(7), keys(8));
        let hello = opener().hello(&acceptor().greeting(), &theirs.links);
        let refused = acceptor().accept(hello.unwrap(), &ours.links, &peers());
        assert_eq!(refused, Err(LinkError::Seal));
        let hello = opener().hello(&acceptor().greeting(), &theirs.links);
        let (_, answer) = acceptor()
            .accept(hello.unwrap(), &theirs.links, &peers())
            .unwrap();
        assert_eq!(opener().check(answer, &ours.links), Err(LinkError::Seal));
    }

    /// An impostor at a peer's address that has the opener, or another node, seal what it lacks.
    #[test]
    fn no_hello_is_an_answer_and_no_answer_is_that_to_another_hello() {
        let keys = keys(7);
        let hello = opener().hello(&acceptor().greeting(), &keys.links).unwrap();
        assert_eq!(
            opener().check(hello.clone(), &keys.links),
            Err(LinkError::Seal)
        );
        let (_, answer) = acceptor().accept(hello, &keys.links, &peers()).unwrap();
        let later = Opener {
            nonce: [9; NONCE_BYTES],
            ..opener()
        };
        let refused = later.check(answer, &keys.links).unwrap_err();
        assert!(refused.to_string().contains("another hello"), "{refused}");
    }

    #[test]
    fn a_stranger_that_speaks_first_is_named_as_such() {
        let keys = keys(7);
        let mut greeting = acceptor().greeting();
        greeting[4] = 2;
        let error = opener().hello(&greeting, &keys.links).unwrap_err();
        assert_eq!(error, LinkError::Version(2));
        let http = *b"HTTP/1.1 400 Bad Request";
        let error = opener().hello(&http, &keys.links).unwrap_err();
        assert_eq!(error, LinkError::Greeting);
    }

    fn a_hello() -> (InUse, Bytes) {
        let keys = keys(7);
        let hello = opener().hello(&acceptor().greeting(), &keys.links);
        (keys, hello.unwrap())
    }

    #[test]
    fn fuzz_a_hello() {
        let (_, hello) = a_hello();
        assert!(hello.len() <= HELLO_BYTES_MAX);
        nowserving_testkit::target!(vec![hello.to_vec()], |bytes| {
            let (keys, hello) = a_hello();
            let came = Bytes::copy_from_slice(bytes);
            if acceptor().accept(came, &keys.links, &peers()).is_ok() {
                assert_eq!(bytes, &hello[..]);
            }
        });
    }
}
