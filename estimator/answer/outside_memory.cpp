#include "estimator/answer/outside_memory.h"

#include <algorithm>
#include <string>

#include "estimator/frameworks/framework.h"

namespace shardplan {
namespace {

class OutsideRows : public OutsideParts {
 public:
  void add(const OutsidePart& piece) override {
    rows.push_back({.component = piece.component,
                    .name = std::string(piece.prefix) + std::string(piece.name),
                    .elements = piece.bytes,
                    .dtype = DType::kBool,
                    .bytes = piece.bytes,
                    .copies = 1,
                    .born = {.name = "start"},
                    .dies = {.name = "end"},
                    .formula = std::string(piece.formula),
                    .in_allocator = false,
                    .origin = piece.origin});
  }
  std::vector<Row> rows;
};

}  // namespace

std::vector<Row> outside_rows(const Job& job, const Plan& plan, std::int64_t pp_rank) {
  OutsideRows outside;
  framework_of(job.profile).add_outside(job, plan, pp_rank, outside);
  return std::move(outside.rows);
}

std::int64_t outside_bytes(const Job& job, const Plan& plan, std::int64_t pp_rank) {
  OutsideSum outside;
  framework_of(job.profile).add_outside(job, plan, pp_rank, outside);
  return outside.bytes();
}

SeenByOutside seen_by_outside(const Job& job, const Plan& plan) {
  const Framework& framework = framework_of(job.profile);
  return framework.seen_by_outside != nullptr
             ? framework.seen_by_outside(job, plan)
             : SeenByOutside{.chunks = std::min<std::int64_t>(plan.vpp, 2)};
}

}  // namespace shardplan
