//! How many connections each address has open: one alone must not take all of them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::limits::counted;

/// Counts by address, an IPv6 address by its first 64 bits. Cheap to clone.
#[derive(Clone)]
pub(super) struct Addresses {
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
    max: usize,
}

/// One connection of an address.
pub(super) struct Counted {
    addresses: Addresses,
    address: IpAddr,
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
        let open = all.entry(address).or_insert(0);
        (*open < self.max).then(|| {
            *open += 1;
            Counted {
                addresses: self.clone(),
                address,
            }
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut all = self.addresses.lock();
        if let Some(open) = all.get_mut(&self.address) {
            *open -= 1;
            if *open == 0 {
                all.remove(&self.address);
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
}
