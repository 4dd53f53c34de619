//! What most lines do not need: it takes no more than a pointer until it is used.

use std::fmt;

/// A value that is mostly the default one.
#[derive(Clone)]
pub(crate) struct Seldom<T>(Option<Box<T>>);

impl<T> Default for Seldom<T> {
    fn default() -> Self {
        Self(None)
    }
}

/// The same for a default value that was never used and one that is one again.
impl<T: Default + fmt::Debug> fmt::Debug for Seldom<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(value) => value.fmt(f),
            None => T::default().fmt(f),
        }
    }
}

impl<T: Default> Seldom<T> {
    /// `None` is the default value.
    pub(crate) fn get(&self) -> Option<&T> {
        self.0.as_deref()
    }

    pub(crate) fn value(&self) -> T
    where
        T: Copy,
    {
        self.get().copied().unwrap_or_default()
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }
}

impl<T: Default + PartialEq> From<T> for Seldom<T> {
    fn from(value: T) -> Self {
        Self((value != T::default()).then(|| Box::new(value)))
    }
}
