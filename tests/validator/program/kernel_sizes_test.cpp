#include "validator/program/kernel_sizes.h"

#include <doctest/doctest.h>

#include "tests/validator/layouts.h"

namespace shardplan {

TEST_CASE("sizes that kernels would cut off at the last vector are named, with what is expected") {
  ModelSpec llama2_7b = tiny_model();
  llama2_7b.hidden = 4096;
  llama2_7b.num_heads = 32;
  llama2_7b.num_kv_heads = 32;
  llama2_7b.head_dim = 128;
  llama2_7b.ffn = 11008;
  llama2_7b.vocab = 32000;
  Job job = tiny_job(llama2_7b, 64);
  CHECK_FALSE(why_no_kernels(job, {}).has_value());
  CHECK_FALSE(why_no_kernels(job, {.tp = 32}).has_value());
  // 11008 / 64 = 172: four elements of every row would be left as they were.
  CHECK(why_no_kernels(job, {.tp = 64}) == "ffn / tp: found 172, expected a multiple of 8");
  job.model.head_dim = 72;
  CHECK(why_no_kernels(job, {}) == "head_dim: found 72, expected a multiple of 16");
  job.model.head_dim = 512;
  CHECK(why_no_kernels(job, {}) == "head_dim: found 512, expected 256 at most");
}

TEST_CASE("experts have widths and numbers of their own") {
  Job job = tiny_job(tiny_moe(), 4);
  job.model.head_dim = 16;
  job.model.ffn = 32;
  job.model.vocab = 32;
  job.model.moe.expert_ffn = 40;
  job.model.moe.shared_ffn = 0;
  CHECK_FALSE(why_no_kernels(job, {}).has_value());
  CHECK(why_no_kernels(job, {.tp = 2, .etp = 2}) ==
        "expert_ffn / etp: found 20, expected a multiple of 8");
  job.model.moe.num_experts = 2048;
  CHECK(why_no_kernels(job, {}) == "num_experts: found 2048, expected 1024 at most");
}

}  // namespace shardplan
