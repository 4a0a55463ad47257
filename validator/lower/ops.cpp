#include "validator/lower/ops.h"

#include "validator/lower/fp8.h"
#include "validator/lower/tensor.h"

namespace shardplan {

TensorSpec temporary(std::string name, std::int64_t rows, std::int64_t cols) {
  return {.name = std::move(name), .rows = rows, .cols = cols};
}

TensorSpec statistics(std::string name, std::int64_t rows, std::int64_t cols) {
  return {.name = std::move(name), .dtype = DType::kFp32, .rows = rows, .cols = cols};
}

TensorSpec kept(TensorSpec spec) {
  spec.component = Component::kActivations;
  return spec;
}

TensorSpec exchanged(TensorSpec spec) {
  spec.component = Component::kCommunication;
  return spec;
}

void emit(Lowering& l, Operation operation, const std::string& label) {
  operation.chunk = l.chunk;
  operation.microbatch = l.microbatch;
  operation.layer = l.layer;
  operation.label = l.phase + "." + label;
  l.builder.emit(std::move(operation));
}

bool accumulates(Lowering& l, const View& gradient) {
  return !l.written.insert({gradient.tensor, gradient.offset}).second;
}

void linear(Lowering& l, const View& y, const View& x, const PlacedWeight& w,
            const std::string& label) {
  Operation product{
      .kind = OpKind::kGemm, .in = {x, w.weight}, .out = {y}, .attributes = {.transpose_b = true}};
  in_fp8_forward(l, product);
  emit(l, std::move(product), label);
}

void linear_input_gradient(Lowering& l, const View& dx, const View& dy, const PlacedWeight& w,
                           const std::string& label) {
  Operation product{.kind = OpKind::kGemm, .in = {dy, w.weight}, .out = {dx}};
  in_fp8_input_gradient(l, product);
  emit(l, std::move(product), label + ".input_gradient");
}

void linear_weight_gradient(Lowering& l, const PlacedWeight& w, const View& dy, const View& x,
                            const std::string& label) {
  Operation product{.kind = OpKind::kGemm,
                    .in = {dy, x},
                    .out = {w.gradient},
                    .attributes = {.accumulate = accumulates(l, w.gradient), .transpose_a = true}};
  in_fp8_weight_gradient(l, product);
  emit(l, std::move(product), label + ".weight_gradient");
}

namespace {

View part_of(const View& view, const TokenPiece& piece) {
  return view.present() ? rows_of(view, piece.row, piece.rows) : view;
}

}  // namespace

void rms_norm(Lowering& l, const View& y, const View& rstd, const View& x, const PlacedWeight& w,
              const std::string& label) {
  for (const TokenPiece& piece : token_pieces(l)) {
    const auto part = [&](const View& view) { return part_of(view, piece); };
    emit(l,
         {.kind = OpKind::kRmsNormForward,
          .in = {part(x), w.weight},
          .out = {part(y), part(rstd)},
          .attributes = {.epsilon = l.hyperparameters.rms_epsilon}},
         label);
  }
}

void add_rows(Lowering& l, const View& out, const View& x, const View& y,
              const std::string& label) {
  for (const TokenPiece& piece : token_pieces(l)) {
    const auto part = [&](const View& view) { return part_of(view, piece); };
    emit(l, {.kind = OpKind::kAdd, .in = {part(x), part(y)}, .out = {part(out)}}, label);
  }
}

void rms_norm_backward(Lowering& l, const View& out, const View& dx, const View& dy, const View& x,
                       const View& rstd, const PlacedWeight& w, const std::string& label) {
  for (const TokenPiece& piece : token_pieces(l)) {
    const auto part = [&](const View& view) { return part_of(view, piece); };
    emit(l,
         {.kind = OpKind::kRmsNormBackward,
          .in = {part(dy), part(x), part(rstd), w.weight, part(dx)},
          .out = {part(out), w.gradient},
          .attributes = {.accumulate = accumulates(l, w.gradient)}},
         label);
  }
}

}  // namespace shardplan
