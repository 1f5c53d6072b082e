"""A loss that never has the whole logits: the output head and cross entropy, part by part.

What exported code has of it begins below the imports: it needs torch alone.
"""

import torch

# Parts of a micro-batch's tokens, one of which has logits at a time; as torchtune's chunked loss
# (``num_output_chunks`` of ``CEWithChunkedOutputLoss``).
LOSS_PARTS = 8


class FusedLoss(torch.autograd.Function):
    """The mean cross entropy of a linear layer's output, in fp32.

    As Liger-Kernel's fused linear cross entropy, forward computes the gradients too, while it has
    a part's logits: nothing is computed twice, and backward scales what forward has left.
    """

    @staticmethod
    def forward(ctx, hidden, weight, bias, targets, softcap) -> torch.Tensor:  # type: ignore
        counts = targets >= 0
        share = counts / counts.sum()  # of each token in the mean
        targets = targets.clamp(min=0).unsqueeze(-1)
        loss = torch.zeros((), device=hidden.device)
        d_hidden, d_weight = torch.empty_like(hidden), torch.zeros_like(weight)
        d_bias = None if bias is None else torch.zeros_like(bias)
        rows = [tensor.chunk(LOSS_PARTS) for tensor in (hidden, d_hidden, targets, share)]
        for x, d_x, target, part in zip(*rows, strict=True):
            logits = torch.nn.functional.linear(x, weight, bias).float()
            if softcap:
                capped = logits.div_(softcap).tanh_()
                logits = capped * softcap
            log_p = torch.log_softmax(logits, -1)
            del logits
            loss -= (log_p.gather(-1, target).squeeze(-1) * part).sum()
            gradient = log_p.exp_()
            gradient.scatter_add_(-1, target, -torch.ones_like(target, dtype=gradient.dtype))
            gradient.mul_(part.unsqueeze(-1))
            if softcap:
                gradient.mul_(capped.square_().neg_().add_(1))
                del capped
            gradient = gradient.to(x.dtype)
            torch.mm(gradient, weight, out=d_x)
            d_weight.addmm_(gradient.t(), x)
            if d_bias is not None:
                d_bias += gradient.sum(0)
            del log_p, gradient
        ctx.gradients = d_hidden, d_weight, d_bias
        return loss

    @staticmethod
    def backward(ctx, scale) -> tuple[torch.Tensor | None, ...]:  # type: ignore
        gradients, ctx.gradients = ctx.gradients, None
        return *(None if one is None else one.mul_(scale) for one in gradients), None, None


def fuse_loss(model) -> None:  # type: ignore
    """Makes ``model(..., labels=...)`` compute its loss so; ``logits`` are then the loss too.

    Without labels, and between forwards, model and config are what they were.
    """
    head, config = model.get_output_embeddings(), model.config
    own_forward, own_loss = head.forward, model.loss_function
    labels: list[torch.Tensor] = []  # those of the forward that is under way
    softcap = getattr(config, "final_logit_softcapping", None)

    def begin(module, args, kwargs) -> None:  # type: ignore
        if kwargs.get("labels") is not None:
            labels[:] = [kwargs["labels"]]
            if softcap:
                config.final_logit_softcapping = None  # it is done here

    def end(module, args, output) -> None:  # type: ignore
        labels.clear()
        if softcap:
            config.final_logit_softcapping = softcap

    def head_or_loss(hidden) -> torch.Tensor:  # type: ignore
        if not labels:
            logits: torch.Tensor = own_forward(hidden)
            return logits
        weight, bias, device = head.weight, getattr(head, "bias", None), hidden.device.type
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
            hidden, weight = hidden.to(dtype), weight.to(dtype)
            bias = None if bias is None else bias.to(dtype)
        targets = torch.nn.functional.pad(labels[0], (0, 1), value=-100)[..., 1:].reshape(-1)
        with torch.autocast(device, enabled=False):
            flat = hidden.flatten(0, 1)
            loss: torch.Tensor = FusedLoss.apply(flat, weight, bias, targets, softcap)
        return loss

    def loss_of(logits, *args, **kwargs) -> torch.Tensor:  # type: ignore
        return logits if labels else own_loss(logits, *args, **kwargs)  # type: ignore

    model.register_forward_pre_hook(begin, with_kwargs=True)
    model.register_forward_hook(end, always_call=True)
    head.forward = head_or_loss
    model.loss_function = loss_of
