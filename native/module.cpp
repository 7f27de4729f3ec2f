// Python bindings: tensors cross as DLPack, everything else as plain values. Callers in Python have validated shapes,
// dtypes and ranges; what is checked again here is what would otherwise read or write out of bounds.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "dispatch.hpp"
#include "fpenv.hpp"
#include "gradients.hpp"
#include "log.hpp"
#include "run.hpp"
#include "strikes.hpp"
#include "traps.hpp"

namespace nb = nanobind;
using steadysum::DType;
using steadysum::in_default_environment;

namespace {

using Array = nb::ndarray<nb::device::cpu>;
using FloatVector = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using DoubleVector = nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FloatMatrix = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using IndexVector = nb::ndarray<std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void require(bool holds, const char* what) {
    if (!holds) throw std::invalid_argument(std::string("native call: ") + what);
}

DType dtype_of(const Array& a) {
    const nb::dlpack::dtype d = a.dtype();
    if (d == nb::dtype<float>()) return DType::f32;
    require(d.bits == 16 && d.lanes == 1, "operands must be float32, bfloat16 or float16");
    if (d.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Bfloat)) return DType::bf16;
    require(d.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float),
            "operands must be float32, bfloat16 or float16");
    return DType::f16;
}

steadysum::Matrix matrix(const Array& a) {
    require(a.ndim() == 2, "input and weight must be matrices");
    return {a.data(),    dtype_of(a), static_cast<std::int64_t>(a.shape(0)), static_cast<std::int64_t>(a.shape(1)),
            a.stride(0), a.stride(1)};
}

float* output(const std::optional<FloatVector>& a, std::int64_t size, const char* what) {
    if (!a) return nullptr;
    require(static_cast<std::int64_t>(a->shape(0)) == size, what);
    return a->data();
}

// A problem together with the arrays that it points into.
class Call {
   public:
    Call(Array input, Array weight, std::optional<Array> bias, double scale, std::optional<double> softcap,
         std::optional<FloatVector> temperature, std::int64_t valid_vocab,
         std::optional<std::pair<std::int64_t, std::int64_t>> shard, FloatVector max, FloatVector sum_exp,
         std::optional<IndexVector> target, std::optional<FloatVector> target_logit,
         std::optional<FloatVector> weighted_sum, std::optional<FloatVector> ties, std::optional<FloatMatrix> logits)
        : input_(std::move(input)),
          weight_(std::move(weight)),
          bias_(std::move(bias)),
          temperature_(std::move(temperature)),
          max_(std::move(max)),
          sum_exp_(std::move(sum_exp)),
          target_(std::move(target)),
          target_logit_(std::move(target_logit)),
          weighted_sum_(std::move(weighted_sum)),
          ties_(std::move(ties)),
          logits_(std::move(logits)) {
        problem.input = matrix(input_);
        problem.weight = matrix(weight_);
        const std::int64_t rows = problem.rows();
        const std::int64_t vocabulary = problem.vocabulary();
        require(problem.input.columns == problem.weight.columns, "input and weight differ in H");
        require(problem.input.dtype == problem.weight.dtype, "input and weight differ in dtype");
        require(vocabulary > 0, "weight has no rows");
        require(valid_vocab > 0 && valid_vocab <= vocabulary, "valid_vocab must be in 1..V");
        problem.valid_columns = valid_vocab;
        if (shard) {
            const auto [start, whole] = *shard;
            require(start >= 0 && vocabulary <= whole && start <= whole - vocabulary,
                    "shard must lie in its vocabulary");
            problem.shard = {start, whole};
        }
        if (bias_) {
            require(bias_->ndim() == 1 && static_cast<std::int64_t>(bias_->shape(0)) == vocabulary, "bias must be [V]");
            problem.epilogue.bias = {bias_->data(), dtype_of(*bias_), vocabulary, bias_->stride(0)};
        }
        steadysum::in_default_environment([&] {  // the caller's rounding mode has no part in it
            problem.epilogue.scale = static_cast<float>(scale);
            problem.epilogue.softcap = static_cast<float>(softcap.value_or(0.0));
        });
        require(!softcap || problem.epilogue.softcap != 0.0F, "softcap is 0 in float32");  // 0 stands for none
        if (temperature_) {
            const auto size = static_cast<std::int64_t>(temperature_->shape(0));
            require(size == 1 || size == rows, "temperature must be [1] or [N]");
            problem.epilogue.temperature = temperature_->data();
            problem.epilogue.temperature_per_row = size == rows && size != 1;
        }
        problem.max = output(max_, rows, "max must be [N]");
        problem.sum_exp = output(sum_exp_, rows, "sum_exp must be [N]");
        problem.weighted_sum = output(weighted_sum_, rows, "weighted_sum must be [N]");
        problem.ties = output(ties_, rows, "ties must be [N]");
        require(!weighted_sum_ || !ties_, "a partial carries weighted_sum or ties, not both");
        require(target_.has_value() || !target_logit_, "target_logit needs a target");
        if (target_) {
            require(static_cast<std::int64_t>(target_->shape(0)) == rows, "target must be [N]");
            for (std::int64_t i = 0; i < rows; ++i) {
                const std::int64_t t = target_->data()[i];
                require(t >= 0 && t < valid_vocab, "target out of range");
            }
            problem.target = target_->data();
            problem.target_logit = output(target_logit_, rows, "target_logit must be [N]");
        }
        if (logits_) {
            require(static_cast<std::int64_t>(logits_->shape(0)) == rows &&
                        static_cast<std::int64_t>(logits_->shape(1)) == vocabulary,
                    "logits must be [N, V]");
            problem.logits = logits_->data();
        }
    }

    steadysum::Problem problem;

   private:
    Array input_;
    Array weight_;
    std::optional<Array> bias_;
    std::optional<FloatVector> temperature_;
    std::optional<FloatVector> max_;
    std::optional<FloatVector> sum_exp_;
    std::optional<IndexVector> target_;
    std::optional<FloatVector> target_logit_;
    std::optional<FloatVector> weighted_sum_;
    std::optional<FloatVector> ties_;
    std::optional<FloatMatrix> logits_;
};

void run(const std::vector<Call*>& calls, int threads) {
    require(threads >= 1, "threads must be at least 1");
    std::vector<steadysum::Problem> problems;
    problems.reserve(calls.size());
    for (const Call* c : calls) problems.push_back(c->problem);
    const nb::gil_scoped_release released;
    steadysum::run(problems, threads);
}

// The checksums of a weight: the arrays, for whoever keeps them, as lay_out says.
class Checksums {
   public:
    // Takes them of the call's weight, grid and unmasked columns.
    Checksums(const Call& call, FloatMatrix columns, FloatMatrix energies, FloatVector inverse_scale, int threads)
        : columns_(std::move(columns)), energies_(std::move(energies)), inverse_scale_(std::move(inverse_scale)) {
        const steadysum::Problem& p = call.problem;
        tiles_ = p.grid().tiles();
        depth_ = p.depth();
        const std::int64_t blocks = steadysum::Grid::ceil_div(depth_, steadysum::kBlock);
        const auto is = [](const FloatMatrix& m, std::int64_t rows, std::int64_t columns) {
            return static_cast<std::int64_t>(m.shape(0)) == rows && static_cast<std::int64_t>(m.shape(1)) == columns;
        };
        require(is(columns_, steadysum::kChecksums * tiles_, depth_), "columns must be [2 tiles, H]");
        require(is(energies_, steadysum::kChecksums * tiles_, blocks), "energies must be [2 tiles, blocks]");
        require(static_cast<std::int64_t>(inverse_scale_.shape(0)) == tiles_, "inverse_scale must be [tiles]");
        require(threads >= 1, "threads must be at least 1");
        const nb::gil_scoped_release released;
        steadysum::take_weight_checksums(p, arrays(), threads);
    }
    [[nodiscard]] bool fits(const steadysum::Problem& p) const {
        return p.grid().tiles() == tiles_ && p.depth() == depth_;
    }
    [[nodiscard]] steadysum::WeightChecksums arrays() const {
        return {columns_.data(), energies_.data(), inverse_scale_.data()};
    }

   private:
    FloatMatrix columns_;
    FloatMatrix energies_;
    FloatVector inverse_scale_;
    std::int64_t tiles_ = 0;
    std::int64_t depth_ = 0;
};

nb::dict report(const steadysum::CheckLog& log, const std::vector<steadysum::Problem>& problems) {
    static constexpr const char* names[steadysum::kStages] = {"input", "product", "statistics", "partial"};
    nb::dict healed;
    for (int i = 0; i < steadysum::kStages; ++i) healed[names[i]] = log.healed[i].load();
    nb::list bad;
    for (const steadysum::BadRow& b : log.bad())
        bad.append(nb::make_tuple(names[static_cast<int>(b.stage)], b.problem - problems.data(), b.row, b.tile));
    nb::dict found;
    found["checks"] = log.checks.load();
    found["healed"] = healed;
    found["cleared"] = log.cleared.load();
    found["stale"] = log.stale.load();
    found["bad"] = bad;
    found["bad_count"] = log.bad_count();
    return found;
}

// Verified; ratios: one array for each call, or None.
nb::dict run_verified(const std::vector<Call*>& calls, const std::vector<Checksums*>& checksums,
                      const std::vector<std::optional<FloatMatrix>>& ratios, std::uint32_t epoch, int threads) {
    require(threads >= 1, "threads must be at least 1");
    require(calls.size() == checksums.size() && calls.size() == ratios.size(), "one of each for every call");
    steadysum::CheckLog log;
    std::vector<steadysum::Problem> problems;
    std::vector<steadysum::WeightChecksums> weights;
    std::vector<steadysum::Verification> verifications;
    weights.reserve(calls.size());
    for (std::size_t i = 0; i < calls.size(); ++i) {
        const steadysum::Problem& p = calls[i]->problem;
        require(checksums[i]->fits(p), "checksums are of another weight or grid");
        float* to = nullptr;
        if (ratios[i]) {
            require(static_cast<std::int64_t>(ratios[i]->shape(0)) == p.grid().tiles() &&
                        static_cast<std::int64_t>(ratios[i]->shape(1)) == p.rows(),
                    "ratios must be [tiles, N]");
            to = ratios[i]->data();
        }
        problems.push_back(p);
        weights.push_back(checksums[i]->arrays());
        verifications.push_back({&weights.back(), &log, epoch, to});
    }
    {
        const nb::gil_scoped_release released;
        steadysum::run_verified(problems, verifications, threads);
    }
    return report(log, problems);
}

using OptionalVector = std::optional<FloatVector>;

// The column weights and the dense matrix of a chunk, checked.
struct Operands {
    steadysum::Matrix dense;
    steadysum::RowOperands rows;

    Operands(const steadysum::Problem& problem, const OptionalVector& column_weight,
             const std::optional<Array>& dense_array) {
        rows.column_weight = output(column_weight, problem.vocabulary(), "column_weight must be [V]");
        if (!dense_array) return;
        dense = matrix(*dense_array);
        require(dense.rows == problem.rows() && dense.columns == problem.vocabulary(), "dense must be [N, V]");
        rows.dense = &dense;
    }
    Operands(const Operands&) = delete;
    Operands& operator=(const Operands&) = delete;
};

// The work of one call's chunks, in the order: keep_logits, then sum and gradients of the chunk that is kept.
class Gradients {
   public:
    void keep_logits(const Call& call, int threads) {
        kept_rows_ = call.problem.rows();
        kept_columns_ = call.problem.vocabulary();
        const nb::gil_scoped_release released;
        work_.keep_logits(call.problem, threads);
    }

    nb::dict keep_verified_logits(const Call& call, const Checksums& checksums, std::uint32_t epoch, int threads) {
        require(checksums.fits(call.problem), "checksums are of another weight or grid");
        const std::vector<steadysum::Problem> problems{call.problem};
        steadysum::CheckLog log;
        const steadysum::WeightChecksums weight = checksums.arrays();
        const steadysum::Verification verification{&weight, &log, epoch, nullptr};
        kept_rows_ = call.problem.rows();
        kept_columns_ = call.problem.vocabulary();
        {
            const nb::gil_scoped_release released;
            work_.keep_logits(problems.front(), threads, &verification);
        }
        return report(log, problems);
    }

    void sum(const Call& call, const OptionalVector& column_weight, const std::optional<Array>& dense,
             const OptionalVector& column_sum, const OptionalVector& dense_total, const OptionalVector& dense_sum,
             const OptionalVector& dense_exp, int threads) {
        require_kept(call);
        const std::int64_t rows = call.problem.rows();
        const Operands operands(call.problem, column_weight, dense);
        require(dense.has_value() || (!dense_total && !dense_sum && !dense_exp), "sums over dense need dense");
        const steadysum::RowSums sums{
            output(column_sum, rows, "sums must be [N]"), output(dense_total, rows, "sums must be [N]"),
            output(dense_sum, rows, "sums must be [N]"), output(dense_exp, rows, "sums must be [N]")};
        const nb::gil_scoped_release released;
        work_.sum(call.problem, operands.rows, sums, threads);
    }

    void gradients(const Call& call, bool kept, const OptionalVector& column_weight, const std::optional<Array>& dense,
                   const OptionalVector& exp, const OptionalVector& slope, const OptionalVector& center,
                   const OptionalVector& column, const OptionalVector& dense_term, const OptionalVector& tie,
                   const OptionalVector& target, const OptionalVector& keep_above,
                   const std::optional<FloatMatrix>& input_gradient, const std::optional<FloatMatrix>& weight_gradient,
                   const OptionalVector& bias_gradient, bool first, int threads) {
        if (kept) require_kept(call);
        const steadysum::Problem& problem = call.problem;
        const std::int64_t rows = problem.rows();
        const auto term = [&](const OptionalVector& v) { return output(v, rows, "coefficients must be [N]"); };
        const Operands operands(problem, column_weight, dense);
        require(dense.has_value() || (!center && !dense_term), "terms of dense need dense");
        require(problem.target != nullptr || !target, "the target's term needs a target");
        const steadysum::RowTerms terms{term(exp),        term(slope), term(center), term(column),
                                        term(dense_term), term(tie),   term(target), term(keep_above)};
        const auto result = [&](const std::optional<FloatMatrix>& m, std::int64_t size) -> float* {
            if (!m) return nullptr;
            require(static_cast<std::int64_t>(m->shape(0)) == size &&
                        static_cast<std::int64_t>(m->shape(1)) == problem.depth(),
                    "gradients must be [N, H] and [V, H]");
            return m->data();
        };
        const steadysum::GradientResults results{
            result(input_gradient, rows), result(weight_gradient, problem.vocabulary()),
            output(bias_gradient, problem.vocabulary(), "the bias's gradient must be [V]"), first};
        const nb::gil_scoped_release released;
        if (kept) {
            kept_rows_ = -1;  // the logits are used up
            work_.kept_gradients(problem, operands.rows, terms, results, threads);
        } else {
            work_.gradients(problem, operands.rows, terms, results, threads);
        }
    }

   private:
    void require_kept(const Call& call) const {
        require(call.problem.rows() == kept_rows_ && call.problem.vocabulary() == kept_columns_,
                "keep_logits of this chunk comes first");
    }

    steadysum::GradientWork work_;
    std::int64_t kept_rows_ = -1;
    std::int64_t kept_columns_ = -1;
};

std::int64_t common_size(std::initializer_list<const FloatVector*> arrays) {
    const auto size = static_cast<std::int64_t>((*arrays.begin())->shape(0));
    for (const FloatVector* a : arrays)
        require(static_cast<std::int64_t>(a->shape(0)) == size, "arrays differ in size");
    return size;
}

void merge(const FloatVector& max1, const FloatVector& sum1, const FloatVector& max2, const FloatVector& sum2,
           const FloatVector& max, const FloatVector& sum) {
    const std::int64_t size = common_size({&max1, &sum1, &max2, &sum2, &max, &sum});
    in_default_environment([&] {
        steadysum::current_kernel().merge({max1.data(), sum1.data(), nullptr}, {max2.data(), sum2.data(), nullptr},
                                          {max.data(), sum.data(), nullptr}, size);
    });
}

void merge_weighted(const FloatVector& max1, const FloatVector& sum1, const FloatVector& weighted1,
                    const FloatVector& max2, const FloatVector& sum2, const FloatVector& weighted2,
                    const FloatVector& max, const FloatVector& sum, const FloatVector& weighted) {
    const std::int64_t size = common_size({&max1, &sum1, &weighted1, &max2, &sum2, &weighted2, &max, &sum, &weighted});
    in_default_environment([&] {
        steadysum::current_kernel().merge({max1.data(), sum1.data(), weighted1.data()},
                                          {max2.data(), sum2.data(), weighted2.data()},
                                          {max.data(), sum.data(), weighted.data()}, size);
    });
}

// fp64 to fp32, to nearest whatever the caller's rounding mode.
void narrow(const DoubleVector& x, const FloatVector& out) {
    require(x.shape(0) == out.shape(0), "arrays differ in size");
    in_default_environment([&] {
        for (std::size_t i = 0; i < x.shape(0); ++i) out.data()[i] = static_cast<float>(x.data()[i]);
    });
}

void exp_array(const FloatVector& x, const FloatVector& out) {
    const std::int64_t size = common_size({&x, &out});
    in_default_environment([&] { steadysum::current_kernel().exp(x.data(), out.data(), size); });
}
void tanh_array(const FloatVector& x, const FloatVector& out) {
    const std::int64_t size = common_size({&x, &out});
    in_default_environment([&] { steadysum::current_kernel().tanh(x.data(), out.data(), size); });
}

// out[i] := f(i) for every element.
template <typename F>
void fill(const FloatVector& out, std::int64_t size, F&& f) {
    in_default_environment([&] {
        for (std::int64_t i = 0; i < size; ++i) out.data()[i] = f(i);
    });
}

void log_array(const FloatVector& x, const FloatVector& out) {
    fill(out, common_size({&x, &out}), [&](std::int64_t i) { return steadysum::log(x.data()[i]); });
}

// The log-probability of the target, -(log s - (z - m)): the large common offset cancels before the logarithm joins.
void logprob(const FloatVector& target_logit, const FloatVector& max, const FloatVector& sum_exp,
             const FloatVector& out) {
    const std::int64_t size = common_size({&target_logit, &max, &sum_exp, &out});
    fill(out, size, [&](std::int64_t i) {
        const float log_sum = steadysum::log(sum_exp.data()[i]);
        if (steadysum::armed(steadysum::Trap::loss_as_difference))
            return -((max.data()[i] + log_sum) - target_logit.data()[i]);
        return -(log_sum - (target_logit.data()[i] - max.data()[i]));
    });
}

// -sum p log p = log s - t / s, where t is the weighted sum.
void entropy(const FloatVector& sum_exp, const FloatVector& weighted_sum, const FloatVector& out) {
    fill(out, common_size({&sum_exp, &weighted_sum, &out}), [&](std::int64_t i) {
        return steadysum::log(sum_exp.data()[i]) - weighted_sum.data()[i] / sum_exp.data()[i];
    });
}

void softmax(const FloatMatrix& logits, const FloatVector& max, const FloatVector& sum_exp, int threads) {
    const auto rows = static_cast<std::int64_t>(logits.shape(0));
    require(common_size({&max, &sum_exp}) == rows, "max and sum_exp must be [R]");
    float* z = logits.data();
    const nb::gil_scoped_release released;
    steadysum::run_softmax(z, rows, static_cast<std::int64_t>(logits.shape(1)), max.data(), sum_exp.data(), threads);
}

}  // namespace

NB_MODULE(_native, m) {
    m.attr("__version__") = STEADYSUM_VERSION;
    m.def("isa", [] { return std::string(steadysum::current_kernel().isa); });
    m.def("runnable_isas", [] {
        std::vector<std::string> names;
        for (const steadysum::TileKernel* k : steadysum::runnable_kernels()) names.emplace_back(k->isa);
        return names;
    });
    m.def("set_isa", &steadysum::choose_kernel, nb::arg("name"));
    m.def("cpu_features", [] {
        nb::dict features;
        for (const auto& [name, present] : steadysum::cpu_features()) features[name.c_str()] = present;
        return features;
    });
    nb::class_<Call>(m, "Call").def(
        nb::init<Array, Array, std::optional<Array>, double, std::optional<double>, std::optional<FloatVector>,
                 std::int64_t, std::optional<std::pair<std::int64_t, std::int64_t>>, FloatVector, FloatVector,
                 std::optional<IndexVector>, std::optional<FloatVector>, std::optional<FloatVector>,
                 std::optional<FloatVector>, std::optional<FloatMatrix>>(),
        nb::arg("input"), nb::arg("weight"), nb::arg("bias").none() = nb::none(), nb::arg("scale") = 1.0,
        nb::arg("softcap").none() = nb::none(), nb::arg("temperature").none() = nb::none(), nb::arg("valid_vocab"),
        nb::arg("shard").none() = nb::none(), nb::arg("max"), nb::arg("sum_exp"), nb::arg("target").none() = nb::none(),
        nb::arg("target_logit").none() = nb::none(), nb::arg("weighted_sum").none() = nb::none(),
        nb::arg("ties").none() = nb::none(), nb::arg("logits").none() = nb::none());
    nb::class_<Gradients>(m, "Gradients")
        .def(nb::init<>())
        .def("keep_logits", &Gradients::keep_logits, nb::arg("call"), nb::arg("threads"))
        .def("keep_verified_logits", &Gradients::keep_verified_logits, nb::arg("call"), nb::arg("checksums"),
             nb::arg("epoch"), nb::arg("threads"))
        .def("sum", &Gradients::sum, nb::arg("call"), nb::arg("column_weight").none(), nb::arg("dense").none(),
             nb::arg("column_sum").none(), nb::arg("dense_total").none(), nb::arg("dense_sum").none(),
             nb::arg("dense_exp").none(), nb::arg("threads"))
        .def("gradients", &Gradients::gradients, nb::arg("call"), nb::arg("kept"), nb::arg("column_weight").none(),
             nb::arg("dense").none(), nb::arg("exp").none(), nb::arg("slope").none(), nb::arg("center").none(),
             nb::arg("column").none(), nb::arg("dense_term").none(), nb::arg("tie").none(), nb::arg("target").none(),
             nb::arg("keep_above").none(), nb::arg("input_gradient").none(), nb::arg("weight_gradient").none(),
             nb::arg("bias_gradient").none(), nb::arg("first"), nb::arg("threads"));
    m.def("run", &run, nb::arg("calls"), nb::arg("threads"));
    nb::class_<Checksums>(m, "Checksums")
        .def(nb::init<const Call&, FloatMatrix, FloatMatrix, FloatVector, int>(), nb::arg("call"), nb::arg("columns"),
             nb::arg("energies"), nb::arg("inverse_scale"), nb::arg("threads"));
    m.def("run_verified", &run_verified, nb::arg("calls"), nb::arg("checksums"), nb::arg("ratios"), nb::arg("epoch"),
          nb::arg("threads"));
    m.def("merge", &merge);
    m.def("merge_weighted", &merge_weighted);
    m.def("narrow", &narrow);
    m.def("exp", &exp_array);
    m.def("tanh", &tanh_array);
    m.def("log", &log_array);
    m.def("logprob", &logprob);
    m.def("entropy", &entropy);
    m.def("softmax_", &softmax);
#ifdef STEADYSUM_TRAPS
    m.def(
        "strike",
        [](int target, std::int64_t after, std::int64_t index, int bit, float add, bool persistent, bool unhealed) {
            steadysum::Strike& s = steadysum::the_strike;
            s.target = static_cast<steadysum::Target>(target);
            s.after = after;
            s.index = index;
            s.bit = bit;
            s.add = add;
            s.persistent = persistent;
            s.unhealed = unhealed;
            s.passes = 0;
            s.struck = 0;
        },
        nb::arg("target"), nb::arg("after") = 0, nb::arg("index") = 0, nb::arg("bit") = -1, nb::arg("add") = 0.0F,
        nb::arg("persistent") = false, nb::arg("unhealed") = false);
    m.def("struck", [] { return steadysum::the_strike.struck.load(); });
    m.def("strike_passes", [] { return steadysum::the_strike.passes.load(); });
    m.attr("TARGETS") =
        std::vector<std::string>{"none", "input", "weight", "logit", "late_logit", "exp", "sum", "max", "partial"};
    m.def("arm", [](int trap) { steadysum::armed_trap = static_cast<steadysum::Trap>(trap); });
    m.attr("TRAPS") = std::vector<std::string>{"none",
                                               "tail_counts_as_zero",
                                               "max_starts_at_zero",
                                               "bias_once_per_block",
                                               "masked_tile_is_nan",
                                               "strides_ignored",
                                               "offsets_in_32_bits",
                                               "stale_partial",
                                               "loss_as_difference",
                                               "logit_gradient_in_16_bits",
                                               "weight_gradient_in_16_bits",
                                               "input_gradient_in_16_bits"};
#endif
}
