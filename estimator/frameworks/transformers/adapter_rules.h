// Where adapters may stand under transformers' Trainer alone.
#pragma once

#include <string>

#include "estimator/validity/rules.h"
#include "estimator/validity/unsupported.h"

namespace shardplan::transformers {

// axolotl's functions as they run on plain tensors (067b021 kernels/lora.py).
inline constexpr ValidityRule kKernelsOnPlainAdapters = {
    .name = "unsupported: adapter_kernels",
    .reads = {PlanField::kZero},
    .broken =
        [](const Job& job, const Plan& plan) {
          return job.profile.adapter_kernels && job.adapters.rank > 0 &&
                 (plan.zero > 0 || job.adapters.decomposes_weights ||
                  job.quantized.kind == Quantization::kInt8);
        },
    .explain =
        [](const Job& job, const Plan& plan) {
          return not_modelled(job, "adapter_kernels",
                              plan.zero > 0 ? "true with zero " + number_text(plan.zero)
                              : job.adapters.decomposes_weights ? "true with DoRA"
                                                                : "true with int8 weights",
                              "false, or plain adapters with zero 0");
        }};

}  // namespace shardplan::transformers
