//! The bytes of the types of the standard library.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::{Codec, Malformed, Reader, Writer};

impl Codec for u8 {
    #[inline]
    fn encode(&self, to: &mut Writer) {
        to.byte(*self);
    }

    #[inline]
    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        from.byte()
    }

    #[inline]
    fn encode_all(items: &[Self], to: &mut Writer) {
        to.put(items);
    }

    #[inline]
    fn decode_all(count: usize, from: &mut Reader<'_>) -> Result<Vec<Self>, Malformed> {
        from.take(count).map(<[u8]>::to_vec)
    }
}

macro_rules! numbers {
    ($($type:ident)*) => {$(
        impl Codec for $type {
            #[inline]
            fn encode(&self, to: &mut Writer) {
                to.number((*self).into());
            }

            #[inline]
            fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
                let number = from.number()?;
                number.try_into().map_err(|_| Malformed("a number that is too large"))
            }
        }
    )*};
}

numbers! { u16 u32 u64 }

impl Codec for u128 {
    #[inline]
    fn encode(&self, to: &mut Writer) {
        to.put(&self.to_be_bytes());
    }

    #[inline]
    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        <[u8; 16]>::decode(from).map(u128::from_be_bytes)
    }
}

impl Codec for bool {
    #[inline]
    fn encode(&self, to: &mut Writer) {
        to.byte((*self).into());
    }

    #[inline]
    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        match from.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("neither yes nor no")),
        }
    }
}

macro_rules! texts {
    ($($type:ty)*) => {$(
        impl Codec for $type {
            #[inline]
            fn encode(&self, to: &mut Writer) {
                to.text(self);
            }

            #[inline]
            fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
                Ok(from.text()?.to_owned().into())
            }
        }
    )*};
}

texts! { String Box<str> Arc<str> Cow<'static, str> }

impl<T: Codec> Codec for Option<T> {
    #[inline]
    fn encode(&self, to: &mut Writer) {
        self.is_some().encode(to);
        if let Some(value) = self {
            value.encode(to);
        }
    }

    #[inline]
    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        bool::decode(from)?.then(|| T::decode(from)).transpose()
    }

    fn first_format(&self) -> u32 {
        self.as_ref().map_or(1, T::first_format)
    }
}

impl<T: Codec, E: Codec> Codec for Result<T, E> {
    #[inline]
    fn encode(&self, to: &mut Writer) {
        self.is_err().encode(to);
        match self {
            Ok(value) => value.encode(to),
            Err(error) => error.encode(to),
        }
    }

    #[inline]
    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match bool::decode(from)? {
            false => Ok(T::decode(from)?),
            true => Err(E::decode(from)?),
        })
    }

    fn first_format(&self) -> u32 {
        match self {
            Ok(value) => value.first_format(),
            Err(error) => error.first_format(),
        }
    }
}

impl<T: Codec> Codec for Box<T> {
    #[inline]
    fn encode(&self, to: &mut Writer) {
        T::encode(self, to);
    }

    #[inline]
    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        from.nested(T::decode).map(Box::new)
    }

    fn first_format(&self) -> u32 {
        T::first_format(self)
    }
}

macro_rules! lists {
    ($($type:ty)*) => {$(
        impl<T: Codec> Codec for $type {
            #[inline]
            fn encode(&self, to: &mut Writer) {
                to.number(self.len() as u64);
                T::encode_all(self, to);
            }

            #[inline]
            fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
                let count = from.count()?;
                from.nested(|from| T::decode_all(count, from)).map(Into::into)
            }

            fn first_format(&self) -> u32 {
                self.iter().map(T::first_format).max().unwrap_or(1)
            }
        }
    )*};
}

lists! { Vec<T> Box<[T]> }

impl<T: Codec> Codec for VecDeque<T> {
    #[inline]
    fn encode(&self, to: &mut Writer) {
        to.number(self.len() as u64);
        for item in self {
            item.encode(to);
        }
    }

    #[inline]
    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Vec::decode(from).map(Into::into)
    }

    fn first_format(&self) -> u32 {
        self.iter().map(T::first_format).max().unwrap_or(1)
    }
}

impl Codec for Arc<[u8]> {
    #[inline]
    fn encode(&self, to: &mut Writer) {
        to.number(self.len() as u64);
        to.put(self);
    }

    #[inline]
    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let count = from.count()?;
        from.take(count).map(Into::into)
    }
}

impl<T: Codec, const N: usize> Codec for [T; N] {
    #[inline]
    fn encode(&self, to: &mut Writer) {
        T::encode_all(self, to);
    }

    #[inline]
    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let items = T::decode_all(N, from)?;
        items
            .try_into()
            .map_err(|_| Malformed("another number of items"))
    }
}

macro_rules! tuples {
    ($($($type:ident $place:tt)*;)*) => {$(
        impl<$($type: Codec),*> Codec for ($($type,)*) {
            #[inline]
            fn encode(&self, to: &mut Writer) {
                $(self.$place.encode(to);)*
            }

            #[inline]
            fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
                Ok(($($type::decode(from)?,)*))
            }

            fn first_format(&self) -> u32 {
                let mut format = 1;
                $(format = format.max(self.$place.first_format());)*
                format
            }
        }
    )*};
}

tuples! {
    A 0 B 1;
    A 0 B 1 C 2;
}

const OUT_OF_ORDER: Malformed = Malformed("keys out of order, or twice");

impl<K: Codec + Ord, V: Codec> Codec for BTreeMap<K, V> {
    #[inline]
    fn encode(&self, to: &mut Writer) {
        to.number(self.len() as u64);
        for (key, value) in self {
            key.encode(to);
            value.encode(to);
        }
    }

    #[inline]
    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let count = from.count()?;
        let items = from.nested(|from| <(K, V)>::decode_all(count, from))?;
        if !items.is_sorted_by(|a, b| a.0 < b.0) {
            return Err(OUT_OF_ORDER);
        }
        Ok(items.into_iter().collect())
    }

    fn first_format(&self) -> u32 {
        let formats = self
            .iter()
            .map(|(key, value)| key.first_format().max(value.first_format()));
        formats.max().unwrap_or(1)
    }
}

impl<K: Codec + Ord> Codec for BTreeSet<K> {
    #[inline]
    fn encode(&self, to: &mut Writer) {
        to.number(self.len() as u64);
        for key in self {
            key.encode(to);
        }
    }

    #[inline]
    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let items = Vec::<K>::decode(from)?;
        if !items.is_sorted_by(|a, b| a < b) {
            return Err(OUT_OF_ORDER);
        }
        Ok(items.into_iter().collect())
    }
}
