// Seconds of products by shape, of one GPU: layers of many plans multiply the same shapes.
#pragma once

#include <cstdint>

#include "estimator/time/kernel_time.h"
#include "estimator/time/memo.h"

namespace shardplan {

class ProductMemo {
 public:
  // As gemm_s.
  double seconds(const GpuSpec& gpu, Precision precision, const ProductShape& shape) {
    const std::int64_t kind =
        16 * static_cast<std::int64_t>(precision) + static_cast<std::int64_t>(shape.pass);
    return known_
        .find({shape.m, shape.n, shape.k, shape.count, kind},
              [&](double& seconds) { seconds = gemm_s(gpu, precision, shape); })
        .value;
  }

 private:
  PieceMemo<double, 5> known_{4096};
};

}  // namespace shardplan
