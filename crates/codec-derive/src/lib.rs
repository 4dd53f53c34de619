//! `#[derive(Codec)]`: see the crate `nowserving-codec`, which says what the bytes are.

use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote};
use syn::{Attribute, Data, DeriveInput, Error, Fields, LitInt, Path, Result, parse_macro_input};

#[proc_macro_derive(Codec, attributes(codec))]
pub fn derive(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand(&input)
        .unwrap_or_else(Error::into_compile_error)
        .into()
}

fn expand(input: &DeriveInput) -> Result<TokenStream> {
    let name = &input.ident;
    let mut generics = input.generics.clone();
    for parameter in generics.type_params_mut() {
        parameter
            .bounds
            .push(syn::parse_quote!(::nowserving_codec::Codec));
    }
    let (params, args, bounds) = generics.split_for_impl();
    let Parts {
        encode,
        decode,
        format,
    } = match &input.data {
        Data::Struct(data) => of_struct(&data.fields)?,
        Data::Enum(data) => of_enum(name, data)?,
        Data::Union(_) => return Err(Error::new_spanned(name, "a union has no bytes")),
    };
    let check = attribute(&input.attrs, "check", |value| value.parse::<Path>())?;
    let check =
        check.map(|check| quote! { #check(&read).map_err(::nowserving_codec::Malformed)?; });
    Ok(quote! {
        impl #params ::nowserving_codec::Codec for #name #args #bounds {
            fn encode(&self, to: &mut ::nowserving_codec::Writer) {
                #encode
            }

            fn decode(
                from: &mut ::nowserving_codec::Reader<'_>,
            ) -> ::core::result::Result<Self, ::nowserving_codec::Malformed> {
                let read = #decode;
                #check
                ::core::result::Result::Ok(read)
            }

            fn first_format(&self) -> u32 {
                #format
            }
        }
    })
}

/// The bodies of the three functions.
struct Parts {
    encode: TokenStream,
    decode: TokenStream,
    format: TokenStream,
}

/// The value of `#[codec(key = value)]`.
fn attribute<T>(
    attributes: &[Attribute],
    key: &str,
    parse: impl Fn(syn::parse::ParseStream<'_>) -> Result<T>,
) -> Result<Option<T>> {
    let mut found = None;
    for attribute in attributes.iter().filter(|it| it.path().is_ident("codec")) {
        attribute.parse_nested_meta(|meta| {
            if !meta.path.is_ident(key) {
                return Err(meta.error("not known here"));
            }
            found = Some(parse(meta.value()?)?);
            Ok(())
        })?;
    }
    Ok(found)
}

/// The first format that has it; `None`: all have.
fn since(attributes: &[Attribute]) -> Result<Option<u32>> {
    attribute(attributes, "since", |value| {
        value.parse::<LitInt>()?.base10_parse()
    })
}

/// The fields of a struct or variant, each bound to a name.
struct Bound {
    pattern: TokenStream,
    encode: TokenStream,
    /// An expression after the type's or variant's name.
    decode: TokenStream,
    /// An expression.
    format: TokenStream,
}

fn bind(fields: &Fields) -> Result<Bound> {
    let mut names = Vec::new();
    let (mut encode, mut decode, mut format) = (Vec::new(), Vec::new(), Vec::new());
    for (place, field) in fields.iter().enumerate() {
        let name = format_ident!("field_{place}");
        let ty = &field.ty;
        let plain = quote! { <#ty as ::nowserving_codec::Codec>::encode(#name, to); };
        let read = quote! { <#ty as ::nowserving_codec::Codec>::decode(from)? };
        let inner = quote! { <#ty as ::nowserving_codec::Codec>::first_format(#name) };
        match since(&field.attrs)? {
            None => {
                encode.push(plain);
                decode.push(read);
                format.push(inner);
            }
            Some(since) => {
                encode.push(quote! { if to.format() >= #since { #plain } });
                decode.push(quote! {
                    if from.format() >= #since { #read } else { ::core::default::Default::default() }
                });
                format.push(quote! {
                    if *#name == <#ty as ::core::default::Default>::default() { 1 } else { #inner.max(#since) }
                });
            }
        }
        names.push(name);
    }
    let (pattern, decode) = around(fields, &names, &decode);
    Ok(Bound {
        pattern,
        encode: quote! { #(#encode)* },
        decode,
        format: quote! { { #[allow(unused_mut)] let mut format = 1u32; #(format = format.max(#format);)* format } },
    })
}

/// The fields' names, and their values, in the brackets that the fields have.
fn around(fields: &Fields, names: &[Ident], values: &[TokenStream]) -> (TokenStream, TokenStream) {
    match fields {
        Fields::Named(named) => {
            let own: Vec<_> = named.named.iter().map(|field| &field.ident).collect();
            (
                quote! { { #(#own: #names),* } },
                quote! { { #(#own: #values),* } },
            )
        }
        Fields::Unnamed(_) => (quote! { (#(#names),*) }, quote! { (#(#values),*) }),
        Fields::Unit => (quote! {}, quote! {}),
    }
}

fn of_struct(fields: &Fields) -> Result<Parts> {
    let Bound {
        pattern,
        encode,
        decode,
        format,
    } = bind(fields)?;
    Ok(Parts {
        encode: quote! { let Self #pattern = self; #encode },
        decode: quote! { Self #decode },
        format: quote! { let Self #pattern = self; #format },
    })
}

fn of_enum(name: &Ident, data: &syn::DataEnum) -> Result<Parts> {
    let (mut encode, mut decode, mut format) = (Vec::new(), Vec::new(), Vec::new());
    for (place, variant) in data.variants.iter().enumerate() {
        let place =
            u8::try_from(place).map_err(|_| Error::new_spanned(name, "more than 256 variants"))?;
        let variant_name = &variant.ident;
        let bound = bind(&variant.fields)?;
        let (pattern, inner, read, least) =
            (bound.pattern, bound.encode, bound.decode, bound.format);
        let since = since(&variant.attrs)?;
        let known = since.map(|since| quote! { if from.format() >= #since });
        let since = since.unwrap_or(1);
        encode.push(quote! { Self::#variant_name #pattern => { to.byte(#place); #inner } });
        decode.push(quote! { #place #known => Self::#variant_name #read });
        format.push(quote! { Self::#variant_name #pattern => #least.max(#since) });
    }
    let unknown = format!("a {name} that this build does not know");
    Ok(Parts {
        encode: quote! { match self { #(#encode)* } },
        decode: quote! {
            match from.byte()? {
                #(#decode,)*
                _ => return ::core::result::Result::Err(::nowserving_codec::Malformed(#unknown)),
            }
        },
        format: quote! { match self { #(#format,)* } },
    })
}
