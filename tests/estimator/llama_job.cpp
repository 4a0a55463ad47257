#include "tests/estimator/llama_job.h"

#include <string>

#include "data/library.h"

namespace shardplan {

Job llama_job(std::string_view framework, const LlamaShape& shape, std::int64_t gpus,
              std::int64_t sequence, std::int64_t batch) {
  const Library library;
  Job job;
  job.profile = library.framework(std::string(framework));
  job.cluster = library.cluster("1x8-h200");
  job.cluster.gpus_per_node = gpus;
  job.model.hidden = shape.hidden;
  job.model.ffn = shape.ffn;
  job.model.vocab = 128256;
  job.model.num_heads = shape.heads;
  job.model.num_kv_heads = 8;
  job.model.head_dim = shape.hidden / shape.heads;
  job.model.layers.resize(static_cast<std::size_t>(shape.layers));
  job.sequence_length = sequence;
  job.global_batch = batch;
  return job;
}

}  // namespace shardplan
