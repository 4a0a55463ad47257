// What fp8 means, on the host: values, and the scale of a tensor. The kernels are held to it bit
// for bit.
#pragma once

#include <cstdint>

#include "validator/program/fp8_format.h"

namespace shardplan {

// `value` rounded to the format, ties to even; what lies beyond its largest value becomes that (as
// "satfinite" of PTX's cvt). NaN stays NaN.
double rounded_to_fp8(Fp8Format format, double value);

// Sign, exponent and mantissa of a value that the format holds. Throws std::logic_error for NaN.
std::uint8_t fp8_bits(Fp8Format format, double value);

// The scale of a tensor whose largest absolute value is `amax` is 2^exponent: the largest power of
// two that takes amax no further than the format's largest value, 1 for 0 and what is not finite. A
// power of two changes no mantissa: tensors of other sizes, as the ranks of another layout have
// them, are rounded alike but for elements that are subnormal in one of them. 2^exponent and its
// reciprocal are normal floats.
int fp8_scale_exponent(Fp8Format format, double amax);

}  // namespace shardplan
