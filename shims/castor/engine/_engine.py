"""Engine: the model, its optimizer, the loss, gradient handlers and clipping."""
from ..utils.optimizer_wrapper import WrappedOptimizer
from .schedule import BaseSchedule, NonPipelineSchedule


class Engine:
    """The object that schedules and training loops work with.

    Args:
        model: a module; calling the engine calls it.
        optimizer: a torch.optim.Optimizer or a wrapper of one with `backward`; None for evaluation alone.
        criterion: the loss of outputs and labels.
        gradient_handlers: called in order before each step.
        clip_grad_norm: the largest total norm of the gradients at a step; 0: they are not clipped.
        schedule: what execute_schedule runs; a NonPipelineSchedule by default.
    """

    def __init__(self, model, optimizer, criterion=None, gradient_handlers=None, clip_grad_norm=0.0, schedule=None):
        if schedule is not None and not isinstance(schedule, BaseSchedule):
            raise TypeError(f"castor: {schedule!r} is no schedule: expected a castor.engine.schedule.BaseSchedule")
        self._model = model
        self._optimizer = optimizer if optimizer is None or hasattr(optimizer, "backward") else WrappedOptimizer(optimizer)
        self._criterion = criterion
        self._gradient_handlers = list(gradient_handlers or ())
        self._clip_grad_norm = clip_grad_norm
        self._schedule = schedule or NonPipelineSchedule()
        self.training = True

    @property
    def model(self):
        return self._model

    @property
    def optimizer(self):
        return self._optimizer

    @property
    def criterion(self):
        return self._criterion

    @property
    def schedule(self):
        return self._schedule

    def __call__(self, *args, **kwargs):
        return self._model(*args, **kwargs)

    def train(self):
        self.training = True
        self._model.train()

    def eval(self):
        self.training = False
        self._model.eval()

    def zero_grad(self):
        self._optimizer.zero_grad()

    def backward(self, loss):
        """Adds the gradients of `loss`, a scalar tensor, to the parameters'."""
        return self._optimizer.backward(loss)

    def backward_by_grad(self, tensor, grad):
        """Adds to the parameters' gradients, given `grad`, the gradient of `tensor` (the same shape)."""
        return self._optimizer.backward_by_grad(tensor, grad)

    def clip_grad_norm(self, model=None, max_norm=None):
        """Clips the gradients of `model` (by default the engine's) to a total norm of `max_norm` (by default the engine's; 0: no
        clipping). A number as the only argument is `max_norm`. Returns the result of the optimizer's clip_grad_norm. step()
        calls this by itself."""
        if isinstance(model, (int, float)):
            model, max_norm = None, model
        return self._optimizer.clip_grad_norm(
            self._model if model is None else model, self._clip_grad_norm if max_norm is None else max_norm)

    def step(self):
        """Calls the gradient handlers, clips, and steps. Returns the result of the optimizer's step."""
        for handler in self._gradient_handlers:
            handler.handle_gradient()
        self.clip_grad_norm()
        return self._optimizer.step()

    def execute_schedule(self, data_iter, **kwargs):
        """(output, label, loss) of one run of the schedule; `kwargs` are forward_backward_step's."""
        return self._schedule.forward_backward_step(self, data_iter, **kwargs)
