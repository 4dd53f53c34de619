//! Counters by their keys, in the order of these: a tree of two levels. Its leaves are rows of bytes (`page`), as a map
//! with a key and a counter of their own for each takes three times as much memory.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::ops::ControlFlow;

use super::page::{Page, Record};
use crate::Counter;
use crate::packed::{self, Logs, Packed};

#[derive(Debug, Clone, Default)]
pub(super) struct Pages {
    /// None is empty. Each has the keys from its own on, up to that of the next one.
    pages: BTreeMap<Box<[u8]>, Page>,
    logs: Logs,
    counters: usize,
}

impl Pages {
    pub fn len(&self) -> usize {
        self.counters
    }

    fn page(&self, key: &[u8]) -> Option<(&[u8], &Page)> {
        let upto = (Unbounded, Included(key));
        let (bound, page) = self.pages.range::<[u8], _>(upto).next_back()?;
        Some((bound, page))
    }

    fn page_mut(&mut self, key: &[u8]) -> Option<(&[u8], &mut Page, &mut Logs)> {
        let upto = (Unbounded, Included(key));
        let (bound, page) = self.pages.range_mut::<[u8], _>(upto).next_back()?;
        Some((bound, page, &mut self.logs))
    }

    pub fn get(&self, key: &[u8]) -> Option<Cow<'_, Counter>> {
        let (_, page) = self.page(key)?;
        let record = page.find(key)?;
        Some(packed::read(record.kind, page.packed(&record), &self.logs))
    }

    /// Changes a counter, if there is one.
    pub fn change<T>(&mut self, key: &[u8], change: impl FnOnce(&mut Counter) -> T) -> Option<T> {
        let (_, page, logs) = self.page_mut(key)?;
        let record = page.find(key)?;
        let mut counter = take(page, &record, logs);
        let result = change(&mut counter);
        let packed = Packed::of(counter, logs);
        match packed.kind == record.kind {
            true => page.write(&record, &packed),
            false => {
                page.put(key, &packed);
                self.divide(key);
            }
        }
        Some(result)
    }

    /// Adds a counter that is not there.
    pub fn insert(&mut self, key: &[u8], counter: Counter) {
        let packed = Packed::of(counter, &mut self.logs);
        match self.page_mut(key) {
            Some((_, page, _)) => page.put(key, &packed),
            None => {
                let mut page = Page::default();
                page.put(key, &packed);
                self.pages.insert(Box::default(), page);
            }
        }
        self.counters += 1;
        self.divide(key);
    }

    /// Divides the page of a key for as long as it is too large: a key that shares less with the others makes all of them
    /// longer.
    fn divide(&mut self, key: &[u8]) {
        while let Some((_, page, _)) = self.page_mut(key)
            && page.is_too_large()
        {
            let (bound, second) = page.divide();
            self.pages.insert(bound.clone(), second);
            self.divide(&bound);
        }
    }

    pub fn remove(&mut self, key: &[u8]) -> Option<Counter> {
        let (bound, page, logs) = self.page_mut(key)?;
        let record = page.find(key)?;
        let counter = take(page, &record, logs);
        page.remove(&record);
        if page.is_empty() {
            let bound = Box::<[u8]>::from(bound);
            self.pages.remove(&bound);
        } else if page.is_small() {
            let bound = Box::from(bound);
            self.join(bound);
        }
        self.counters -= 1;
        Some(counter)
    }

    /// Joins a page with the next one if both are small.
    fn join(&mut self, bound: Box<[u8]>) {
        let after = (Excluded(&*bound), Unbounded);
        let Some((next_bound, next)) = self.pages.range::<[u8], _>(after).next() else {
            return;
        };
        if !self.pages.get(&bound).is_some_and(|page| page.fits(next)) {
            return;
        }
        let next_bound = next_bound.clone();
        let next = self.pages.remove(&next_bound);
        if let (Some(page), Some(next)) = (self.pages.get_mut(&bound), next) {
            page.append(next);
            self.divide(&bound);
        }
    }

    /// The counters after a key, in the order of their keys, until it breaks off.
    pub fn each_after(
        &self,
        after: Option<&[u8]>,
        mut each: impl FnMut(&[u8], &Counter) -> ControlFlow<()>,
    ) {
        let first = after.and_then(|after| self.page(after));
        let from = first.map_or(Unbounded, |(bound, _)| Included(bound));
        let mut key = Vec::new();
        for page in self.pages.range::<[u8], _>((from, Unbounded)) {
            let (_, page) = page;
            for record in page.records() {
                page.key(&record, &mut key);
                if after.is_some_and(|after| *key <= *after) {
                    continue;
                }
                let counter = packed::read(record.kind, page.packed(&record), &self.logs);
                if each(&key, &counter).is_break() {
                    return;
                }
            }
        }
    }
}

fn take(page: &Page, record: &Record, logs: &mut Logs) -> Counter {
    packed::take(record.kind, page.packed(record), logs)
}

impl PartialEq for Pages {
    fn eq(&self, other: &Self) -> bool {
        let mut all = self.counters == other.counters;
        self.each_after(None, |key, counter| {
            all &= other.get(key).as_deref() == Some(counter);
            match all {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        });
        all
    }
}

impl Eq for Pages {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Algorithm, FixedWindow};

    fn counter(algorithm: Algorithm, number: u32) -> Counter {
        match Counter::fresh(algorithm) {
            Counter::FixedWindow(_) => Counter::FixedWindow(FixedWindow {
                end_us: u64::from(number) << 32,
                count: number,
            }),
            Counter::SlidingWindowLog(mut log) => {
                log.record(1 + u64::from(number), 1, true);
                Counter::SlidingWindowLog(log)
            }
            Counter::SlidingWindowCounter(mut it) => {
                it.end_us = u64::from(number) << 31;
                it.last = number;
                Counter::SlidingWindowCounter(it)
            }
            Counter::Bucket(mut it) => {
                it.empty_us = u64::from(number) << 30;
                Counter::Bucket(it)
            }
        }
    }

    /// Short and long, with much and with nothing in common.
    fn key() -> impl Strategy<Value = Vec<u8>> {
        let long = (0_usize..4, 0_u16..200).prop_map(|(length, number)| {
            let mut key = vec![b'x'; [0, 20, 700, 3_000][length]];
            key.extend(number.to_string().bytes());
            key
        });
        prop_oneof![8 => long, 1 => prop::collection::vec(any::<u8>(), 0..3)]
    }

    proptest! {
        #[test]
        fn as_a_plain_map_has_it(
            steps in prop::collection::vec((0_u8..8, key(), 0_usize..5, any::<u32>()), 1..1_000),
        ) {
            let (mut pages, mut plain) = (Pages::default(), BTreeMap::new());
            for (kind, key, algorithm, number) in steps {
                let new = counter(Algorithm::ALL[algorithm], number);
                let found = pages.get(&key).map(Cow::into_owned);
                prop_assert_eq!(found.as_ref(), plain.get(&key));
                match (kind, plain.get_mut(&key)) {
                    (0..=3, None) => {
                        pages.insert(&key, new.clone());
                        plain.insert(key, new);
                    }
                    (0..=3, Some(there)) => {
                        pages.change(&key, |it| *it = new.clone());
                        *there = new;
                    }
                    (4, _) => {
                        let mut rest = Vec::new();
                        pages.each_after(Some(&key), |key, counter| {
                            rest.push((key.to_vec(), counter.clone()));
                            match rest.len() < 40 {
                                true => ControlFlow::Continue(()),
                                false => ControlFlow::Break(()),
                            }
                        });
                        let after = (Excluded(key), Unbounded);
                        let expected = plain.range(after).take(40);
                        let expected = expected.map(|(key, counter)| (key.clone(), counter.clone()));
                        prop_assert_eq!(rest, expected.collect::<Vec<_>>());
                    }
                    _ => prop_assert_eq!(pages.remove(&key), plain.remove(&key)),
                }
                prop_assert_eq!(pages.len(), plain.len());
            }
            let mut all = BTreeMap::new();
            pages.each_after(None, |key, counter| {
                all.insert(key.to_vec(), counter.clone());
                ControlFlow::Continue(())
            });
            prop_assert_eq!(&all, &plain);
            let mut copy = Pages::default();
            for (key, counter) in &plain {
                copy.insert(key, counter.clone());
            }
            prop_assert_eq!(&copy, &pages);
            for key in plain.keys() {
                pages.remove(key);
            }
            prop_assert!(pages.pages.is_empty());
        }
    }
}
