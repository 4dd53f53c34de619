//! How many connections each address has open: one alone must not take all of them.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::limits::counted;

/// A provider may give a customer so much: 65,536 networks of 64 bits.
const SITE_BITS: u32 = 48;
/// So many times as many connections as an address has a site.
const OF_A_SITE: usize = 4;

/// Counts by address, an IPv6 address by its first 64 bits and by its first 48. Cheap to clone.
#[derive(Clone)]
pub(super) struct Addresses {
    open: Arc<Mutex<HashMap<Network, usize>>>,
    max: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Network {
    Address(IpAddr),
    Site(Ipv6Addr),
}

/// One connection of an address.
pub(super) struct Counted {
    addresses: Addresses,
    address: IpAddr,
}

/// With how many connections each may have, for each that an address may have.
fn networks(address: IpAddr) -> impl Iterator<Item = (Network, usize)> {
    let site = match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(address) => {
            let bits = address.to_bits() & (u128::MAX << (128 - SITE_BITS));
            Some((Network::Site(Ipv6Addr::from_bits(bits)), OF_A_SITE))
        }
    };
    [(Network::Address(address), 1)].into_iter().chain(site)
}

impl Addresses {
    /// Each may have this many.
    pub fn new(max: usize) -> Addresses {
        let open = Arc::default();
        Addresses { open, max }
    }

    /// `None` if the address has as many as it may.
    pub fn take(&self, address: IpAddr) -> Option<Counted> {
        let address = counted(address.to_canonical());
        let mut all = self.lock();
        let is_full = networks(address).any(|(network, times)| {
            let open = all.get(&network).copied().unwrap_or(0);
            open >= self.max.saturating_mul(times)
        });
        if is_full {
            return None;
        }
        for (network, _) in networks(address) {
            *all.entry(network).or_insert(0) += 1;
        }
        Some(Counted {
            addresses: self.clone(),
            address,
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Network, usize>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut all = self.addresses.lock();
        for (network, _) in networks(self.address) {
            if let Some(open) = all.get_mut(&network) {
                *open -= 1;
                if *open == 0 {
                    all.remove(&network);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn each_address_has_its_own_number() {
        let addresses = Addresses::new(2);
        let take = |address: &str| addresses.take(address.parse().unwrap());
        let first = take("192.0.2.1").unwrap();
        let mapped = take("::ffff:192.0.2.1").unwrap();
        assert!(take("192.0.2.1").is_none());
        let other = take("192.0.2.2").unwrap();
        drop(first);
        let again = take("192.0.2.1").unwrap();
        assert!(take("192.0.2.1").is_none());
        drop((mapped, other, again));
        assert!(addresses.lock().is_empty());
    }

    #[test]
    fn a_network_of_64_bits_is_one() {
        let addresses = Addresses::new(1);
        let take = |address: &str| addresses.take(address.parse().unwrap());
        let _open = take("2001:db8::1").unwrap();
        assert!(take("2001:db8::ffff:2").is_none());
        assert!(take("2001:db8:0:1::1").is_some());
    }

    #[test]
    fn a_site_of_48_bits_has_four_times_as_many() {
        let addresses = Addresses::new(1);
        let take = |network: u16| {
            let address = format!("2001:db8:0:{network:x}::1");
            addresses.take(address.parse().unwrap())
        };
        let mut open: Vec<_> = (0..4).map(|network| take(network).unwrap()).collect();
        assert!(take(4).is_none());
        assert!(addresses.take("2001:db8:1::1".parse().unwrap()).is_some());
        open.pop();
        open.push(take(4).unwrap());
        assert!(take(3).is_none());
        drop(open);
        assert!(addresses.lock().is_empty());
    }
}
