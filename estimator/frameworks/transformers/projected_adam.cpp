#include "estimator/frameworks/transformers/projected_adam.h"

#include <algorithm>
#include <map>
#include <utility>

#include "estimator/frameworks/pieces/huggingface/labels.h"
#include "estimator/frameworks/transformers/muon.h"

namespace shardplan::transformers {
namespace {

using eager::Graph;
using eager::InRow;
using eager::Label;
using eager::Parameter;
using eager::Tensor;
using huggingface::kExpAvgRow;
using huggingface::kExpAvgSqRow;
using huggingface::kUpdateRow;

// A projection of gradients, which stays from one renewal to the next.
constexpr Label kProjectionRow = {
    Component::kOptimizer,
    "optimizer.projections",
    DType::kFp32,
    "of a gradient: the rank by its smaller side; in fp32 all its singular vectors",
    nullptr,
    true};
constexpr Label kGradientNormRow = {Component::kOptimizer,
                                    "optimizer.gradient_norms",
                                    DType::kFp32,
                                    "1 of every projected gradient: APOLLO's, of the step before",
                                    nullptr,
                                    true};

// Matrices of layers; those of one row or column are vectors to nobody here.
struct Sides {
  std::int64_t rows = 0;
  std::int64_t columns = 0;

  std::int64_t smaller() const { return std::min(rows, columns); }
  std::int64_t larger() const { return std::max(rows, columns); }
};
Sides sides_of(const Parameter& parameter) {
  return {.rows = parameter.rows, .columns = parameter.data.elements / parameter.rows};
}

// AdamW whose gradients of layers' matrices are projected on their smaller side (proj_type std).
// GaLore projects the step back; APOLLO scales the gradient itself by what the step makes of each
// channel. A step renews all projections, as those of every update interval do.
class ProjectedAdamW final : public ProgramOptimizer {
 public:
  ProjectedAdamW(Graph& graph, const Job& job)
      : graph_(graph),
        is_galore_(job.optimizer == OptimizerKind::kGaLore),
        rank_(job.profile.projection_rank),
        steps_(job.profile.optimizer_steps) {}

  void step(const std::vector<Parameter*>& trained) override {
    const auto step_all = [&](auto is_in) {
      for (const Parameter* parameter : trained) {
        if (is_in(*parameter)) {
          step_one(*parameter);
          names_ = steps_ == OptimizerSteps::kOneByOne ? Names{} : std::move(names_);
        }
      }
    };
    const auto is_vector = [](const Parameter& each) { return each.rows == each.data.elements; };
    const auto is_table = [&](const Parameter& each) {
      return !is_for_muon(each) && !is_vector(each);
    };
    switch (steps_) {
      case OptimizerSteps::kTogether:
        step_all(is_vector);
        step_all(is_table);
        step_all(is_for_muon);
        break;
      case OptimizerSteps::kMatricesFirst:
        step_all(is_for_muon);
        step_all(is_table);
        step_all(is_vector);
        break;
      case OptimizerSteps::kOneByOne: step_all([](const Parameter&) { return true; }); break;
      case OptimizerSteps::kInBackward: break;
    }
    names_ = {};
  }

  void step_alone(Parameter& parameter) override {
    step_one(parameter);
    names_ = {};
  }

 private:
  struct State {
    Tensor projection, exp_avg, exp_avg_sq;
    Tensor norm;  // APOLLO's, of the step before
  };
  // What variables of a step hold until they are assigned for the next parameter.
  struct Names {
    Tensor low, root, update, scales, scaled;
  };

  Tensor make(std::int64_t elements, DType dtype) { return graph_.make(elements, dtype); }

  // torch.linalg.svd in fp32, whose U and V share the smaller side: the matrix once more, which
  // cuSOLVER's gesvdj overwrites (BatchLinearAlgebraLib.cpp svd_cusolver). A projection of fp32 is
  // a view of V or of U. cuSOLVER's workspace is not known.
  Tensor singular_vectors(const Parameter& parameter) {
    const auto [rows, columns] = sides_of(parameter);
    const std::int64_t least = std::min(rows, columns);
    const std::int64_t rank = std::min(rank_, least);
    const bool is_narrow = parameter.dtype != DType::kFp32;
    const Tensor wide = make(is_narrow ? rows * columns : 0, DType::kFp32);
    const bool is_right = rows >= columns;
    const auto make_vectors = [&](std::int64_t elements, bool stays) {
      return made_in(graph_, stays && !is_narrow ? kProjectionRow : kUpdateRow, elements,
                     DType::kFp32);
    };
    const Tensor left = make_vectors(rows * least, !is_right);
    const Tensor values = make(least, DType::kFp32);
    const Tensor right = make_vectors(least * columns, is_right);
    { const Tensor overwritten = make(rows * columns, DType::kFp32); }
    Tensor unused;
    {
      const Tensor diagonal = make(rank * rank, DType::kFp32);
      unused = graph_.make_product(rank * (is_right ? rows : columns), DType::kFp32);
    }
    if (is_narrow) {
      return made_in(graph_, kProjectionRow, rank * (is_right ? columns : rows), parameter.dtype);
    }
    return is_right ? right : left;
  }

  // Numbers of a normal distribution in fp32, divided; the matrix becomes fp32 for its shape's
  // sake.
  Tensor random_directions(const Parameter& parameter) {
    const Sides sides = sides_of(parameter);
    const bool is_narrow = parameter.dtype != DType::kFp32;
    const std::int64_t elements = rank_ * sides.smaller();
    const Tensor wide = make(is_narrow ? sides.rows * sides.columns : 0, DType::kFp32);
    Tensor directions;
    {
      const Tensor drawn = make(elements, DType::kFp32);
      directions = made_in(graph_, is_narrow ? kUpdateRow : kProjectionRow, elements, DType::kFp32);
    }
    return is_narrow ? made_in(graph_, kProjectionRow, elements, parameter.dtype) : directions;
  }

  // The gradient's projection: its rank by the larger side.
  Tensor projected(const Parameter& parameter, State& state) {
    const Sides sides = sides_of(parameter);
    const std::int64_t rank = is_galore_ ? std::min(rank_, sides.smaller()) : rank_;
    state.projection = is_galore_ ? singular_vectors(parameter) : random_directions(parameter);
    return graph_.make_product(rank * sides.larger(), parameter.dtype);
  }

  // The gradient by a factor of each channel, and by a limit of how its norm may grow.
  void scale_gradient(const Parameter& parameter, State& state) {
    const std::int64_t channels = sides_of(parameter).larger();
    const DType dtype = parameter.dtype;
    {
      const Tensor of_step = make(channels, dtype);
      const Tensor of_gradient = make(channels, dtype);
      const Tensor shifted = make(channels, dtype);
      names_.scales = make(channels, dtype);
    }
    names_.scaled = make(parameter.data.elements, dtype);
    const Tensor norm = made_in(graph_, kGradientNormRow, 1, dtype);
    if (state.norm.is_defined()) {
      names_.scaled = make(parameter.data.elements, dtype);
    }
    state.norm = norm;
    names_.update = names_.scaled;
  }

  void step_one(const Parameter& parameter) {
    const InRow row(graph_.tape, kUpdateRow);
    const DType dtype = parameter.dtype;
    const bool is_projected = is_for_muon(parameter);
    State& state = states_[&parameter];
    names_.low = {};
    if (is_projected) {
      names_.low = projected(parameter, state);
    }
    const std::int64_t elements = is_projected ? names_.low.elements : parameter.data.elements;
    if (!state.exp_avg.is_defined()) {
      state.exp_avg = made_in(graph_, kExpAvgRow, elements, dtype);
      state.exp_avg_sq = made_in(graph_, kExpAvgSqRow, elements, dtype);
    }
    names_.root = make(elements, dtype);
    names_.update = make(elements, dtype);
    if (!is_projected) {
      return;
    }
    if (is_galore_) {
      const Tensor whole = graph_.make_product(parameter.data.elements, dtype);
      names_.update = make(parameter.data.elements, dtype);
    } else {
      scale_gradient(parameter, state);
    }
  }

  Graph& graph_;
  const bool is_galore_;
  const std::int64_t rank_;
  const OptimizerSteps steps_;
  std::map<const Parameter*, State> states_;
  Names names_;
};

}  // namespace

std::unique_ptr<ProgramOptimizer> projected_adamw(Graph& graph, const Job& job) {
  return std::make_unique<ProjectedAdamW>(graph, job);
}

}  // namespace shardplan::transformers
