"""Cells of recurrent networks, which PyTorch has as one kernel on CUDA and composes on the CPU, and the flattening of weights."""
import torch


def flatten_weights(weights, *sizes):
    """As cuDNN's: the weights become views of one tensor, which is returned. Their order in it is their own."""
    buffer = torch.empty(sum(weight.numel() for weight in weights), dtype=weights[0].dtype, device=weights[0].device)
    with torch.no_grad():
        for weight, part in zip(weights, buffer.split([weight.numel() for weight in weights])):
            weight.set_(part.view_as(weight).copy_(weight))
    return buffer


def _gates(inputs, hidden, input_bias, hidden_bias):
    if input_bias is not None:
        inputs, hidden = inputs + input_bias, hidden + hidden_bias
    return inputs, hidden


def lstm_cell(inputs, hidden, cell, input_bias=None, hidden_bias=None):
    inputs, hidden = _gates(inputs, hidden, input_bias, hidden_bias)
    taken, kept, new, shown = (inputs + hidden).chunk(4, 1)
    taken, kept, new, shown = taken.sigmoid(), kept.sigmoid(), new.tanh(), shown.sigmoid()
    after = kept * cell + taken * new
    return shown * after.tanh(), after, torch.cat((taken, kept, new, shown), 1)


def lstm_cell_backward(output, cell, before, after, workspace, has_bias):
    taken, kept, new, shown = workspace.chunk(4, 1)
    bent = after.tanh()
    of_shown = torch.zeros_like(shown) if output is None else output * bent
    of_cell = torch.zeros_like(bent) if output is None else output * shown * (1 - bent * bent)
    of_cell = of_cell if cell is None else of_cell + cell
    gates = torch.cat((of_cell * new * taken * (1 - taken), of_cell * before * kept * (1 - kept), of_cell * taken * (1 - new * new),
                       of_shown * shown * (1 - shown)), 1)
    return gates, of_cell * kept, gates.sum(0) if has_bias else torch.empty(0, dtype=gates.dtype)


def gru_cell(inputs, hidden, before, input_bias=None, hidden_bias=None):
    inputs, hidden = _gates(inputs, hidden, input_bias, hidden_bias)
    input_reset, input_update, input_new = inputs.chunk(3, 1)
    hidden_reset, hidden_update, hidden_new = hidden.chunk(3, 1)
    reset, update = (input_reset + hidden_reset).sigmoid(), (input_update + hidden_update).sigmoid()
    new = (input_new + reset * hidden_new).tanh()
    return (before - new) * update + new, torch.cat((reset, update, new, before, hidden_new), 1)


def gru_cell_backward(output, workspace, has_bias):
    reset, update, new, before, hidden_new = workspace.chunk(5, 1)
    of_new = output * (1 - update) * (1 - new * new)
    of_update = output * (before - new) * update * (1 - update)
    of_reset = of_new * hidden_new * reset * (1 - reset)
    inputs, hidden = torch.cat((of_reset, of_update, of_new), 1), torch.cat((of_reset, of_update, of_new * reset), 1)
    none = torch.empty(0, dtype=inputs.dtype)
    return inputs, hidden, output * update, inputs.sum(0) if has_bias else none, hidden.sum(0) if has_bias else none
